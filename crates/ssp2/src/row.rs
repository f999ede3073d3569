//! Row codecs (§2.4): full rows and wire-3 sparse rows.

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::{ErrorCode, SyncError};
use crate::primitives::{Bitmap, MAX_SAFE_INTEGER, Reader, put_bool, put_bytes, put_text};

/// Column types with their wire tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// 1
    String = 1,
    /// 2
    Integer = 2,
    /// 3
    Float = 3,
    /// 4
    Boolean = 4,
    /// 5
    Json = 5,
    /// 6
    Bytes = 6,
    /// 7
    BlobRef = 7,
    /// 8
    Crdt = 8,
}

/// What the codec must know of a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: ColumnType,
    /// Whether NULL is allowed.
    pub nullable: bool,
}

/// A decoded column value. Text kinds keep their raw text.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// NULL
    Null,
    /// string, json and blob_ref
    Text(String),
    /// integer
    Integer(i64),
    /// float
    Float(f64),
    /// boolean
    Boolean(bool),
    /// bytes and crdt
    Bytes(Bytes),
}

/// A decoded sparse row: `None` = column absent.
pub type SparseRow = Vec<Option<Value>>;

/// Why row bytes do not decode, or values do not encode. Always `sync.invalid_request`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RowError {
    /// The rule broken; static and public.
    pub message: &'static str,
    /// Offending column ordinal where there is one.
    pub column: Option<usize>,
}

impl From<RowError> for SyncError {
    fn from(error: RowError) -> Self {
        Self::new(ErrorCode::InvalidRequest, error.message)
    }
}

impl ColumnType {
    /// The type of a wire tag.
    pub const fn from_tag(tag: u8) -> Option<Self> {
        Some(match tag {
            1 => Self::String,
            2 => Self::Integer,
            3 => Self::Float,
            4 => Self::Boolean,
            5 => Self::Json,
            6 => Self::Bytes,
            7 => Self::BlobRef,
            8 => Self::Crdt,
            _ => return None,
        })
    }

    /// Its name in the schema IR.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Float => "float",
            Self::Boolean => "boolean",
            Self::Json => "json",
            Self::Bytes => "bytes",
            Self::BlobRef => "blob_ref",
            Self::Crdt => "crdt",
        }
    }

    /// The type of that IR name.
    pub fn from_name(name: &str) -> Option<Self> {
        (1..=8)
            .filter_map(Self::from_tag)
            .find(|ty| ty.name() == name)
    }
}

impl RowError {
    const fn at(message: &'static str, column: usize) -> Self {
        Self {
            message,
            column: Some(column),
        }
    }
}

/// A set of column ordinals as a bitmap of `ceil(n/8)` bytes, LSB first: presence
/// bitmaps and `conflictColumns` (§2.4, §6.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSet {
    bits: Vec<u8>,
    columns: usize,
}

impl ColumnSet {
    /// The empty set over `columns` columns.
    pub fn new(columns: usize) -> Self {
        Self {
            bits: vec![0; columns.div_ceil(8)],
            columns,
        }
    }

    /// Adds a column; ordinals beyond the table are ignored.
    pub fn insert(&mut self, column: usize) {
        if column < self.columns {
            self.bits[column / 8] |= 1 << (column % 8);
        }
    }

    /// Whether a column is in it.
    pub fn contains(&self, column: usize) -> bool {
        column < self.columns && self.bits[column / 8] & (1 << (column % 8)) != 0
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|byte| *byte == 0)
    }

    /// Its columns, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.columns).filter(|column| self.contains(*column))
    }

    /// The bitmap.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(&self.bits)
    }

    /// Reads a bitmap; `None` when its length or padding is wrong.
    pub fn from_bytes(bytes: &[u8], columns: usize) -> Option<Self> {
        if bytes.len() != columns.div_ceil(8) || has_padding(bytes, columns) {
            return None;
        }
        Some(Self {
            bits: bytes.to_vec(),
            columns,
        })
    }
}

fn has_padding(bitmap: &[u8], bits: usize) -> bool {
    !bits.is_multiple_of(8) && bitmap.last().is_some_and(|last| last >> (bits % 8) != 0)
}

/// Encodes a full row (§2.4).
///
/// # Errors
/// When the values do not fit the columns.
pub fn encode_row(columns: &[Column], values: &[Value]) -> Result<Bytes, RowError> {
    let mut out = BytesMut::new();
    encode_row_into(columns, values, &mut out)?;
    Ok(out.freeze())
}

/// Appends a full row to `out`.
///
/// # Errors
/// When the values do not fit the columns; `out` may then hold a partial row.
pub fn encode_row_into(
    columns: &[Column],
    values: &[Value],
    out: &mut BytesMut,
) -> Result<(), RowError> {
    if columns.len() != values.len() {
        return Err(RowError {
            message: "the row has another number of columns",
            column: None,
        });
    }
    let bitmap = out.len();
    out.resize(bitmap + columns.len().div_ceil(8), 0);
    for (index, (column, value)) in columns.iter().zip(values).enumerate() {
        if *value == Value::Null {
            if !column.nullable {
                return Err(RowError::at("a column that is not nullable is NULL", index));
            }
            out[bitmap + index / 8] |= 1 << (index % 8);
        } else {
            encode_value(column.ty, value, index, out)?;
        }
    }
    Ok(())
}

/// Decodes a full row.
///
/// # Errors
/// On any violation of the row codec.
pub fn decode_row(columns: &[Column], bytes: &Bytes) -> Result<Vec<Value>, RowError> {
    let mut reader = Reader::new(bytes.clone(), 0);
    let values = read_row(columns, &mut reader)?;
    if reader.remaining() != 0 {
        return Err(RowError {
            message: "the row has trailing bytes",
            column: None,
        });
    }
    Ok(values)
}

/// Reads one full row at the reader's position.
pub(crate) fn read_row(columns: &[Column], reader: &mut Reader) -> Result<Vec<Value>, RowError> {
    let mut values = Vec::with_capacity(columns.len());
    walk_row(columns, reader, |column, index, reader| {
        values.push(match column {
            None => Value::Null,
            Some(column) => decode_value(column.ty, index, reader)?,
        });
        Ok(())
    })?;
    Ok(values)
}

/// Checks one full row and passes over it, keeping nothing.
pub(crate) fn skip_row(columns: &[Column], reader: &mut Reader) -> Result<(), RowError> {
    walk_row(columns, reader, |column, index, reader| match column {
        None => Ok(()),
        Some(column) => skip_value(column.ty, index, reader),
    })
}

/// Visits each column of a full row: `None` for NULL, else the column, its value
/// being next in the reader.
fn walk_row(
    columns: &[Column],
    reader: &mut Reader,
    mut visit: impl FnMut(Option<&Column>, usize, &mut Reader) -> Result<(), RowError>,
) -> Result<(), RowError> {
    let nulls = read_bitmap(reader, columns.len())?;
    if reader.has_padding(nulls) {
        return Err(RowError {
            message: "the row has a null padding bit set",
            column: None,
        });
    }
    for (index, column) in columns.iter().enumerate() {
        let null = reader.bit(nulls, index);
        if null && !column.nullable {
            return Err(RowError::at("a column that is not nullable is NULL", index));
        }
        visit((!null).then_some(column), index, reader)?;
    }
    Ok(())
}

/// Encodes a sparse row (§2.4, wire version 3).
///
/// # Errors
/// When the key is absent or the values do not fit the columns.
pub fn encode_sparse_row(
    columns: &[Column],
    primary_key: usize,
    row: &SparseRow,
) -> Result<Bytes, RowError> {
    if columns.len() != row.len() {
        return Err(RowError {
            message: "the row has another number of columns",
            column: None,
        });
    }
    if row.get(primary_key).is_none_or(Option::is_none) {
        return Err(RowError::at("the primary key is absent", primary_key));
    }
    let mut presence = ColumnSet::new(columns.len());
    let present: Vec<(usize, &Value)> = row
        .iter()
        .enumerate()
        .filter_map(|(index, value)| Some((index, value.as_ref()?)))
        .collect();
    let mut nulls = ColumnSet::new(present.len());
    for (at, (index, value)) in present.iter().enumerate() {
        presence.insert(*index);
        if **value == Value::Null {
            if !columns[*index].nullable {
                return Err(RowError::at(
                    "a column that is not nullable is NULL",
                    *index,
                ));
            }
            nulls.insert(at);
        }
    }
    let mut out = BytesMut::new();
    out.put_slice(&presence.bits);
    out.put_slice(&nulls.bits);
    for (index, value) in present {
        if *value != Value::Null {
            encode_value(columns[index].ty, value, index, &mut out)?;
        }
    }
    Ok(out.freeze())
}

/// Decodes a sparse row, checking in the order of §2.4: presence padding, missing
/// key, null padding, NULL on a column that is not nullable.
///
/// # Errors
/// On any violation.
pub fn decode_sparse_row(
    columns: &[Column],
    primary_key: usize,
    bytes: &Bytes,
) -> Result<SparseRow, RowError> {
    let mut reader = Reader::new(bytes.clone(), 0);
    let presence = read_bitmap(&mut reader, columns.len())?;
    if reader.has_padding(presence) {
        return Err(RowError {
            message: "the row has a presence padding bit set",
            column: None,
        });
    }
    if primary_key >= columns.len() || !reader.bit(presence, primary_key) {
        return Err(RowError::at("the primary key is absent", primary_key));
    }
    let present: Vec<usize> = (0..columns.len())
        .filter(|index| reader.bit(presence, *index))
        .collect();
    let nulls = read_bitmap(&mut reader, present.len())?;
    if reader.has_padding(nulls) {
        return Err(RowError {
            message: "a column that is absent is NULL",
            column: None,
        });
    }
    for (at, index) in present.iter().enumerate() {
        if reader.bit(nulls, at) && !columns[*index].nullable {
            return Err(RowError::at(
                "a column that is not nullable is NULL",
                *index,
            ));
        }
    }
    let mut row: SparseRow = vec![None; columns.len()];
    for (at, index) in present.into_iter().enumerate() {
        row[index] = Some(if reader.bit(nulls, at) {
            Value::Null
        } else {
            decode_value(columns[index].ty, index, &mut reader)?
        });
    }
    if reader.remaining() != 0 {
        return Err(RowError {
            message: "the row has trailing bytes",
            column: None,
        });
    }
    Ok(row)
}

fn read_bitmap(reader: &mut Reader, bits: usize) -> Result<Bitmap, RowError> {
    reader.bitmap(bits).map_err(|_| RowError {
        message: "the row is truncated",
        column: None,
    })
}

/// Checks a value and passes over it.
fn skip_value(ty: ColumnType, index: usize, reader: &mut Reader) -> Result<(), RowError> {
    match ty {
        ColumnType::String => reader.text().map(drop),
        ColumnType::Integer => reader.i64().map(drop),
        ColumnType::Float => reader.f64().map(drop),
        ColumnType::Boolean => reader.bool().map(drop),
        ColumnType::Json => reader.json_text().map(drop),
        ColumnType::Bytes | ColumnType::Crdt => reader
            .u32()
            .and_then(|length| reader.skip(length as usize))
            .map(drop),
        ColumnType::BlobRef => {
            let text = reader
                .text()
                .map_err(|error| RowError::at(error.message, index))?;
            if !crate::blob_ref::is_blob_ref(text) {
                return Err(RowError::at("a blob reference is not canonical", index));
            }
            Ok(())
        }
    }
    .map_err(|error| RowError::at(error.message, index))
}

fn decode_value(ty: ColumnType, index: usize, reader: &mut Reader) -> Result<Value, RowError> {
    let primitive = |error: crate::error::DecodeError| RowError::at(error.message, index);
    Ok(match ty {
        ColumnType::String => Value::Text(reader.string().map_err(primitive)?),
        ColumnType::Integer => Value::Integer(reader.i64().map_err(primitive)?),
        ColumnType::Float => Value::Float(reader.f64().map_err(primitive)?),
        ColumnType::Boolean => Value::Boolean(reader.bool().map_err(primitive)?),
        ColumnType::Json => Value::Text(reader.json().map_err(primitive)?),
        ColumnType::Bytes | ColumnType::Crdt => Value::Bytes(reader.bytes().map_err(primitive)?),
        ColumnType::BlobRef => {
            let text = reader.string().map_err(primitive)?;
            if !crate::blob_ref::is_blob_ref(&text) {
                return Err(RowError::at("a blob reference is not canonical", index));
            }
            Value::Text(text)
        }
    })
}

fn encode_value(
    ty: ColumnType,
    value: &Value,
    index: usize,
    out: &mut BytesMut,
) -> Result<(), RowError> {
    match (ty, value) {
        (ColumnType::String, Value::Text(text)) => put_text(out, text),
        (ColumnType::Json, Value::Text(text)) => {
            if !crate::json::is_valid_json(text) {
                return Err(RowError::at("a json value does not parse", index));
            }
            put_text(out, text);
        }
        (ColumnType::BlobRef, Value::Text(text)) => {
            if !crate::blob_ref::is_blob_ref(text) {
                return Err(RowError::at("a blob reference is not canonical", index));
            }
            put_text(out, text);
        }
        (ColumnType::Integer, Value::Integer(value)) => {
            if !(-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(value) {
                return Err(RowError::at("an integer is outside the safe range", index));
            }
            out.put_i64_le(*value);
        }
        (ColumnType::Float, Value::Float(value)) => out.put_f64_le(*value),
        (ColumnType::Boolean, Value::Boolean(value)) => put_bool(out, *value),
        (ColumnType::Bytes | ColumnType::Crdt, Value::Bytes(bytes)) => put_bytes(out, bytes),
        _ => {
            return Err(RowError::at(
                "a value is of another type than its column",
                index,
            ));
        }
    }
    Ok(())
}
