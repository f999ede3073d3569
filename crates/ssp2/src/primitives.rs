//! Primitive encodings: little-endian integers, length-prefixed text and bytes,
//! optionals, lists and ordered maps.

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::{DecodeError, ErrorCode};
use crate::scope_map::{ScopeLists, ScopeMap, ScopeValues};

/// Largest magnitude of an `i64` on the wire: 2^53 − 1.
pub const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// Result of a decode step.
pub(crate) type Decoded<T> = Result<T, DecodeError>;

/// A bitmap inside the bytes of a [`Reader`], least significant bit first (§2.4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bitmap {
    start: usize,
    bits: usize,
}

/// A bounds-checked reader over shared bytes; slices it returns share the input.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    bytes: Bytes,
    at: usize,
    /// Offset of `bytes` in the whole input, for error positions.
    base: usize,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes, base: usize) -> Self {
        Self { bytes, at: 0, base }
    }

    pub(crate) fn error(&self, message: &'static str) -> DecodeError {
        DecodeError {
            code: ErrorCode::InvalidRequest,
            message,
            offset: self.base + self.at,
        }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The position in the whole input.
    pub(crate) fn offset(&self) -> usize {
        self.base + self.at
    }

    /// Passes over a bitmap of `bits` bits and returns where it starts, for
    /// [`Self::bit`]: a reference to it would forbid to read on.
    pub(crate) fn bitmap(&mut self, bits: usize) -> Decoded<Bitmap> {
        let start = self.at;
        self.skip(bits.div_ceil(8))?;
        Ok(Bitmap { start, bits })
    }

    /// Bit `index` of a bitmap read before.
    pub(crate) fn bit(&self, bitmap: Bitmap, index: usize) -> bool {
        index < bitmap.bits && self.bytes[bitmap.start + index / 8] & (1 << (index % 8)) != 0
    }

    /// Whether a bitmap has a bit set beyond its last one.
    pub(crate) fn has_padding(&self, bitmap: Bitmap) -> bool {
        !bitmap.bits.is_multiple_of(8)
            && self.bytes[bitmap.start + bitmap.bits / 8] >> (bitmap.bits % 8) != 0
    }

    pub(crate) fn finish(&self, message: &'static str) -> Decoded<()> {
        if self.remaining() == 0 {
            Ok(())
        } else {
            Err(self.error(message))
        }
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let Some(Ok(array)) = self
            .bytes
            .get(self.at..self.at + N)
            .map(<[u8; N]>::try_from)
        else {
            return Err(self.error("the value is truncated"));
        };
        self.at += N;
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Decoded<i32> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Decoded<i64> {
        let value = i64::from_le_bytes(self.array()?);
        if (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(&value) {
            Ok(value)
        } else {
            Err(self.error("an integer is outside the safe range"))
        }
    }

    pub(crate) fn f64(&mut self) -> Decoded<f64> {
        Ok(f64::from_le_bytes(self.array()?))
    }

    pub(crate) fn bool(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.error("a boolean is neither 0 nor 1")),
        }
    }

    pub(crate) fn take(&mut self, length: usize) -> Decoded<Bytes> {
        if length > self.remaining() {
            return Err(self.error("the value is truncated"));
        }
        let slice = self.bytes.slice(self.at..self.at + length);
        self.at += length;
        Ok(slice)
    }

    pub(crate) fn skip(&mut self, length: usize) -> Decoded<&[u8]> {
        if length > self.remaining() {
            return Err(self.error("the value is truncated"));
        }
        let start = self.at;
        self.at += length;
        Ok(&self.bytes[start..self.at])
    }

    pub(crate) fn bytes(&mut self) -> Decoded<Bytes> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Decoded<&str> {
        let length = self.u32()? as usize;
        let invalid = self.error("text is not valid UTF-8");
        std::str::from_utf8(self.skip(length)?).map_err(|_| invalid)
    }

    pub(crate) fn string(&mut self) -> Decoded<String> {
        Ok(self.text()?.to_owned())
    }

    /// Text that is a JSON document.
    pub(crate) fn json_text(&mut self) -> Decoded<&str> {
        let invalid = self.error("a json value does not parse");
        let text = self.text()?;
        if crate::json::is_valid_json(text) {
            Ok(text)
        } else {
            Err(invalid)
        }
    }

    pub(crate) fn json(&mut self) -> Decoded<String> {
        Ok(self.json_text()?.to_owned())
    }

    pub(crate) fn opt<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Decoded<T>,
    ) -> Decoded<Option<T>> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(self.error("an optional's presence byte is neither 0 nor 1")),
        }
    }

    /// A list whose elements take at least `min_size` bytes each. Capacity comes
    /// from what is really there, never from the count alone.
    pub(crate) fn list<T>(
        &mut self,
        min_size: usize,
        mut read: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Vec<T>> {
        let count = self.u32()? as usize;
        if count.saturating_mul(min_size) > self.remaining() {
            return Err(self.error("a list is longer than its bytes"));
        }
        let mut list = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }

    fn map<V>(
        &mut self,
        min_value: usize,
        read: impl Fn(&mut Self) -> Decoded<V>,
    ) -> Decoded<ScopeMap<V>> {
        let count = self.u32()? as usize;
        if count.saturating_mul(4 + min_value) > self.remaining() {
            return Err(self.error("a map is longer than its bytes"));
        }
        let mut map = ScopeMap::new();
        for _ in 0..count {
            let key = self.string()?;
            let value = read(self)?;
            if !map.push_sorted(key, value) {
                return Err(self.error("map keys are not unique and ascending"));
            }
        }
        Ok(map)
    }

    pub(crate) fn scope_lists(&mut self) -> Decoded<ScopeLists> {
        self.map(4, |r| r.list(4, Self::string))
    }

    pub(crate) fn scope_values(&mut self) -> Decoded<ScopeValues> {
        self.map(4, Self::string)
    }
}

pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    put_bytes(out, text.as_bytes());
}

pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.put_slice(bytes);
}

/// A count or length. Values above `u32::MAX` are refused by the frame length
/// check before anything leaves, so saturating here loses nothing.
pub(crate) fn put_count(out: &mut BytesMut, count: usize) {
    out.put_u32_le(u32::try_from(count).unwrap_or(u32::MAX));
}

pub(crate) fn put_opt<T>(
    out: &mut BytesMut,
    value: Option<T>,
    write: impl FnOnce(&mut BytesMut, T),
) {
    match value {
        None => out.put_u8(0),
        Some(value) => {
            out.put_u8(1);
            write(out, value);
        }
    }
}

pub(crate) fn put_bool(out: &mut BytesMut, value: bool) {
    out.put_u8(u8::from(value));
}

pub(crate) fn put_scope_lists(out: &mut BytesMut, map: &ScopeLists) {
    put_count(out, map.len());
    for (key, values) in map.iter() {
        put_text(out, key);
        put_count(out, values.len());
        for value in values {
            put_text(out, value);
        }
    }
}

pub(crate) fn put_scope_values(out: &mut BytesMut, map: &ScopeValues) {
    put_count(out, map.len());
    for (key, value) in map.iter() {
        put_text(out, key);
        put_text(out, value);
    }
}
