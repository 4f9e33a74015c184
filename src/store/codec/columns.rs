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
pub(super) struct Reader<'a>(DeserializationContext<'a>);

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Reader<'a> {
        Reader(DeserializationContext::new(body, Options::default()))
    }

    /// A column of any length.
    pub(super) fn any<T: Cell>(&mut self, name: &str) -> Result<Vec<T>, String> {
        Vec::<T>::deserialize(&mut self.0).map_err(|error| format!("column {name} cannot be decoded: {error}"))
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

    /// There is nothing after the last column.
    pub(super) fn finish(mut self) -> Result<(), String> {
        match self.0.read_u8() {
            Ok(_) => Err("there are bytes after the last column".to_owned()),
            Err(_) => Ok(()),
        }
    }
}
