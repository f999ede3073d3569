//! SSG2 rows segments (§5.2): header, row blocks, end marker.

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use crate::error::DecodeError;
use crate::primitives::{Decoded, Reader, put_text};
use crate::row::{Column, ColumnType, RowError, Value, encode_row_into, read_row, skip_row};

/// The segment magic.
pub const SEGMENT_MAGIC: [u8; 4] = *b"SSG2";
/// Rows after which a writer closes a block.
pub const BLOCK_ROWS: u32 = 1000;
/// Bytes of rows after which a writer closes a block.
pub const BLOCK_BYTES: usize = 256 * 1024;

/// The header of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Table.
    pub table: String,
    /// Schema version the rows are encoded for.
    pub schema_version: i32,
    /// Columns.
    pub columns: Vec<Column>,
}

/// One row of a segment.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentRow {
    /// Row version at the pin, ≥ 1.
    pub server_version: i64,
    /// Values in column order.
    pub values: Vec<Value>,
}

/// A decoded segment.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Header.
    pub header: SegmentHeader,
    /// Rows by block; no block is empty.
    pub blocks: Vec<Vec<SegmentRow>>,
}

/// Content address: `sha256:` and lowercase hex over the uncompressed bytes (§5.1).
pub fn segment_id(bytes: &[u8]) -> String {
    let mut id = String::with_capacity(71);
    id.push_str("sha256:");
    crate::digest::push_hex(&Sha256::digest(bytes), &mut id);
    id
}

/// Reads a segment block by block.
#[derive(Debug, Clone)]
pub struct SegmentReader {
    reader: Reader,
    header: SegmentHeader,
    ended: bool,
}

impl SegmentReader {
    /// Reads the header.
    ///
    /// # Errors
    /// On any structural violation.
    pub fn new(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes, 0);
        if r.skip(4)? != SEGMENT_MAGIC {
            return Err(r.error("the segment magic is not SSG2"));
        }
        if r.u16()? != 1 {
            return Err(r.error("the segment format version is not supported"));
        }
        if r.u16()? != 0 {
            return Err(r.error("the segment flags are not zero"));
        }
        let table = r.string()?;
        let schema_version = r.i32()?;
        let count = r.u16()?;
        let mut columns = Vec::with_capacity(usize::from(count).min(r.remaining() / 6));
        for _ in 0..count {
            let name = r.string()?;
            let tag = r.u8()?;
            let ty =
                ColumnType::from_tag(tag).ok_or_else(|| r.error("a column type is unknown"))?;
            let flags = r.u8()?;
            if flags > 1 {
                return Err(r.error("a reserved column flag is set"));
            }
            columns.push(Column {
                name,
                ty,
                nullable: flags == 1,
            });
        }
        Ok(Self {
            reader: r,
            header: SegmentHeader {
                table,
                schema_version,
                columns,
            },
            ended: false,
        })
    }

    /// The header.
    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// The next block; `None` after the end marker.
    ///
    /// # Errors
    /// On any structural violation, bytes after the end marker included.
    pub fn next_block(&mut self) -> Result<Option<Vec<SegmentRow>>, DecodeError> {
        let mut block = Vec::new();
        let found = self.block(|columns, server_version, rows| {
            block.push(SegmentRow {
                server_version,
                values: read_row(columns, rows)?,
            });
            Ok(())
        })?;
        Ok(found.then_some(block))
    }

    /// Walks the next block; `read` must consume the row that follows its version.
    fn block(
        &mut self,
        mut read: impl FnMut(&[Column], i64, &mut Reader) -> Result<(), RowError>,
    ) -> Decoded<bool> {
        if self.ended {
            return Ok(false);
        }
        let r = &mut self.reader;
        let row_count = r.u32()?;
        if row_count == 0 {
            r.finish("bytes follow the end marker")?;
            self.ended = true;
            return Ok(false);
        }
        let length = r.u32()? as usize;
        let base = r.offset();
        let mut rows = Reader::new(r.take(length)?, base);
        for _ in 0..row_count {
            let server_version = rows.i64()?;
            if server_version < 1 {
                return Err(rows.error("a row version is below 1"));
            }
            read(&self.header.columns, server_version, &mut rows)
                .map_err(|error| rows.error(error.message))?;
        }
        rows.finish("a block's rows do not fill its length")?;
        Ok(true)
    }
}

/// Decodes a whole segment.
///
/// # Errors
/// On any structural violation.
pub fn decode_segment(bytes: Bytes) -> Result<Segment, DecodeError> {
    let mut reader = SegmentReader::new(bytes)?;
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block()? {
        blocks.push(block);
    }
    Ok(Segment {
        header: reader.header,
        blocks,
    })
}

/// Checks a segment without keeping its rows.
///
/// # Errors
/// On any structural violation.
pub fn validate(bytes: &Bytes) -> Result<(), DecodeError> {
    let mut reader = SegmentReader::new(bytes.clone())?;
    while reader.block(|columns, _, rows| skip_row(columns, rows))? {}
    Ok(())
}

/// Encodes a segment with exactly the blocks given.
///
/// # Errors
/// When a row does not fit the columns, its version is below 1, or there are more
/// columns than their count can say.
pub fn encode_segment(segment: &Segment) -> Result<Bytes, RowError> {
    if segment.header.columns.len() > usize::from(u16::MAX) {
        return Err(RowError {
            message: "a segment has more than 65,535 columns",
            column: None,
        });
    }
    let mut writer = SegmentWriter::new(&segment.header);
    for block in &segment.blocks {
        for row in block {
            writer.write_values(row.server_version, &row.values)?;
        }
        writer.close_block();
    }
    Ok(writer.finish())
}

/// Writes a segment row by row, closing blocks at [`BLOCK_ROWS`] or [`BLOCK_BYTES`].
#[derive(Debug)]
pub struct SegmentWriter {
    columns: Vec<Column>,
    out: BytesMut,
    /// Start of the open block's header.
    block: usize,
    block_rows: u32,
    rows: u64,
}

impl SegmentWriter {
    /// Writes the header.
    pub fn new(header: &SegmentHeader) -> Self {
        let mut out = BytesMut::with_capacity(4096);
        out.put_slice(&SEGMENT_MAGIC);
        out.put_u16_le(1);
        out.put_u16_le(0);
        put_text(&mut out, &header.table);
        out.put_i32_le(header.schema_version);
        out.put_u16_le(u16::try_from(header.columns.len()).unwrap_or(u16::MAX));
        for column in &header.columns {
            put_text(&mut out, &column.name);
            out.put_u8(column.ty as u8);
            out.put_u8(u8::from(column.nullable));
        }
        Self {
            columns: header.columns.clone(),
            block: out.len(),
            out,
            block_rows: 0,
            rows: 0,
        }
    }

    /// Appends a row whose payload is already full-row codec bytes, as stored.
    pub fn row(&mut self, server_version: i64, payload: &[u8]) {
        self.open_block();
        self.out.put_i64_le(server_version);
        self.out.put_slice(payload);
        self.count_row();
        self.close_full_block();
    }

    /// Appends a row from values.
    ///
    /// # Errors
    /// When the values do not fit the columns or the version is below 1; the row is then left out.
    pub fn row_values(&mut self, server_version: i64, values: &[Value]) -> Result<(), RowError> {
        self.write_values(server_version, values)?;
        self.close_full_block();
        Ok(())
    }

    fn write_values(&mut self, server_version: i64, values: &[Value]) -> Result<(), RowError> {
        if server_version < 1 {
            return Err(RowError {
                message: "a row version is below 1",
                column: None,
            });
        }
        self.open_block();
        let start = self.out.len();
        self.out.put_i64_le(server_version);
        let columns = std::mem::take(&mut self.columns);
        let written = encode_row_into(&columns, values, &mut self.out);
        self.columns = columns;
        if let Err(error) = written {
            self.out.truncate(start);
            return Err(error);
        }
        self.count_row();
        Ok(())
    }

    /// Rows written.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether no row was written.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Ends the segment and returns its bytes.
    pub fn finish(mut self) -> Bytes {
        self.close_block();
        self.out.truncate(self.block);
        self.out.put_u32_le(0);
        self.out.freeze()
    }

    fn open_block(&mut self) {
        if self.out.len() == self.block {
            self.out.put_u64_le(0);
        }
    }

    fn count_row(&mut self) {
        self.block_rows += 1;
        self.rows += 1;
    }

    fn close_full_block(&mut self) {
        if self.block_rows >= BLOCK_ROWS || self.out.len() - self.block >= BLOCK_BYTES {
            self.close_block();
        }
    }

    /// Closes the open block, if it holds a row.
    fn close_block(&mut self) {
        if self.block_rows == 0 {
            return;
        }
        let length = u32::try_from(self.out.len() - self.block - 8).unwrap_or(u32::MAX);
        self.out[self.block..self.block + 4].copy_from_slice(&self.block_rows.to_le_bytes());
        self.out[self.block + 4..self.block + 8].copy_from_slice(&length.to_le_bytes());
        self.block = self.out.len();
        self.block_rows = 0;
    }
}
