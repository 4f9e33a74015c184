//! An input, taken apart from its front. What is missing at its end reads as zero.

/// See the module.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub fn long(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// As many bytes as the number of 16 bits before them says, or as there are.
    pub fn chunk(&mut self) -> &'a [u8] {
        let length = usize::from(self.short()).min(self.0.len());
        let (chunk, rest) = self.0.split_at(length);
        self.0 = rest;
        chunk
    }

    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let length = N.min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        array[..length].copy_from_slice(bytes);
        self.0 = rest;
        array
    }
}

/// How inputs are made, for seeds.
#[cfg(test)]
#[derive(Default)]
pub struct Maker(pub Vec<u8>);

#[cfg(test)]
impl Maker {
    pub fn byte(mut self, byte: u8) -> Maker {
        self.0.push(byte);
        self
    }

    pub fn short(mut self, number: u16) -> Maker {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn word(mut self, number: u32) -> Maker {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn long(mut self, number: u64) -> Maker {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn chunk(self, bytes: &[u8]) -> Maker {
        self.short(u16::try_from(bytes.len()).unwrap()).rest(bytes)
    }

    pub fn rest(mut self, bytes: &[u8]) -> Maker {
        self.0.extend(bytes);
        self
    }
}
