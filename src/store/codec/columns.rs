//! The body of a record: columns of fixed-width numbers, one after the other.
//!
//! Only `Vec<u8>`, `Vec<u32>` and `Vec<u64>` go through desert: for these its decoder looks at the input's length before it
//! allocates, and they are the fastest besides. The traits here keep everything else out.

use desert_rust::{BinaryDeserializer, BinaryInput, BinarySerializer, DeserializationContext, Options, SerializationContext};

/// A number that a column can be made of.
pub(super) trait Cell: BinarySerializer + BinaryDeserializer + 'static {}

impl Cell for u8 {}
impl Cell for u32 {}
impl Cell for u64 {}

/// Writes columns.
pub(super) struct Writer(SerializationContext<Vec<u8>>);

impl Writer {
    pub(super) fn new() -> Writer {
        Writer(SerializationContext::new(Vec::new(), Options::default()))
    }

    pub(super) fn column<T: Cell>(&mut self, column: &Vec<T>) -> Result<(), String> {
        column.serialize(&mut self.0).map_err(|error| format!("a column cannot be encoded: {error}"))
    }

    /// Texts are two columns: their lengths in bytes, and all their bytes.
    pub(super) fn texts<'a>(&mut self, texts: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
        let lengths = texts.clone().map(|text| u32::try_from(text.len()));
        self.column(&lengths.collect::<Result<Vec<u32>, _>>().map_err(|_| "a text is too long".to_owned())?)?;
        self.column(&texts.flat_map(str::bytes).collect::<Vec<u8>>())
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0.into_output()
    }
}

/// Reads columns back, in the order in which they were written. Must only be given bytes whose checksum held.
pub(super) struct Reader<'a> {
    context: DeserializationContext<'a>,
    length: usize,
    /// How many bytes [`Writer`] makes of the columns that were read.
    written: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Reader<'a> {
        Reader { context: DeserializationContext::new(body, Options::default()), length: body.len(), written: 0 }
    }

    /// A column of any length.
    pub(super) fn any<T: Cell>(&mut self, name: &str) -> Result<Vec<T>, String> {
        let column = Vec::<T>::deserialize(&mut self.context);
        let column = column.map_err(|error| format!("column {name} cannot be decoded: {error}"))?;
        self.written += written_len::<T>(column.len());
        Ok(column)
    }

    /// A column of exactly `len` cells.
    pub(super) fn column<T: Cell>(&mut self, name: &str, len: usize) -> Result<Vec<T>, String> {
        let column = self.any(name)?;
        if column.len() != len {
            return Err(format!("column {name} has {} cells, it takes {len}", column.len()));
        }
        Ok(column)
    }

    /// A column of exactly `N` cells, as an array.
    pub(super) fn array<T: Cell + Copy, const N: usize>(&mut self, name: &str) -> Result<[T; N], String> {
        let column = self.column(name, N)?;
        column.try_into().map_err(|_| format!("column {name} takes {N} cells"))
    }

    /// `count` texts, as [`Writer::texts`] wrote them.
    pub(super) fn texts(&mut self, name: &str, count: usize) -> Result<Vec<String>, String> {
        let lengths: Vec<u32> = self.column(name, count)?;
        let bytes: Vec<u8> = self.any(name)?;
        let mut rest = &bytes[..];
        let mut texts = Vec::with_capacity(count);
        for length in lengths {
            let (text, after) = rest
                .split_at_checked(length as usize)
                .ok_or_else(|| format!("column {name} ends within a text of {length} bytes"))?;
            rest = after;
            texts.push(std::str::from_utf8(text).map_err(|_| format!("column {name} has a text that is not UTF-8"))?.to_owned());
        }
        if !rest.is_empty() {
            return Err(format!("column {name} has {} bytes that belong to no text", rest.len()));
        }
        Ok(texts)
    }

    /// There is nothing after the last column, and every column stands as [`Writer`] writes it: desert reads some in other ways too,
    /// all of them longer, and what would be written back in other bytes was not written by this program.
    pub(super) fn finish(mut self) -> Result<(), String> {
        if self.context.read_u8().is_ok() {
            return Err("there are bytes after the last column".to_owned());
        }
        if self.length != self.written {
            return Err(format!("its columns take {} bytes, they are written in {}", self.length, self.written));
        }
        Ok(())
    }
}

/// How many bytes a column of so many cells takes: its length in groups of 7 bits, doubled for cells of several bytes, and the cells.
fn written_len<T>(cells: usize) -> usize {
    let length = if size_of::<T>() == 1 { cells } else { cells * 2 };
    let bits = (usize::BITS - length.leading_zeros()).max(1);
    bits.div_ceil(7) as usize + cells * size_of::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_any_length_take_as_many_bytes_as_is_counted() {
        for cells in [0, 1, 63, 64, 127, 128, 8191, 8192, 16_383, 16_384] {
            let written = |write: &dyn Fn(&mut Writer)| {
                let mut writer = Writer::new();
                write(&mut writer);
                writer.finish().len()
            };
            assert_eq!(written(&|writer| writer.column(&vec![7u8; cells]).unwrap()), written_len::<u8>(cells));
            assert_eq!(written(&|writer| writer.column(&vec![7u32; cells]).unwrap()), written_len::<u32>(cells));
            assert_eq!(written(&|writer| writer.column(&vec![7u64; cells]).unwrap()), written_len::<u64>(cells));
        }
    }

    /// The length 1 in two bytes, and a column that says item by item whether there is another one.
    #[test]
    fn a_column_that_is_written_in_another_way_is_refused() {
        let other_length = [0x81, 0, 7];
        let mut item_by_item = vec![1, 1];
        item_by_item.extend([0, 0, 0, 7, 0]);
        let mut reader = Reader::new(&other_length);
        assert_eq!(reader.any::<u8>("x"), Ok(vec![7]));
        assert_eq!(reader.finish(), Err("its columns take 3 bytes, they are written in 2".to_owned()));
        let mut reader = Reader::new(&item_by_item);
        assert_eq!(reader.any::<u32>("x"), Ok(vec![7]));
        assert_eq!(reader.finish(), Err("its columns take 7 bytes, they are written in 5".to_owned()));
    }
}
