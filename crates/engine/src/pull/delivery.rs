//! How a rows segment travels (§4.2, §5.7). SQLite images are decided elsewhere:
//! they only ever travel by reference.

use crate::round::Accept;

/// Rows segments smaller than this many bytes go inline when the client takes both (§5.7).
pub const INLINE_SEGMENT_BYTES: usize = 256 * 1024;

/// How a rows segment is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// SEGMENT_INLINE
    Inline,
    /// SEGMENT_REF
    Reference,
}

/// Chooses for a rows segment of `bytes` uncompressed bytes. A client that takes
/// one way only gets that one, whatever the size.
pub const fn delivery(accept: Accept, bytes: usize) -> Delivery {
    match (accept.inline_rows(), accept.external_rows()) {
        (true, false) => Delivery::Inline,
        (true, true) if bytes < INLINE_SEGMENT_BYTES => Delivery::Inline,
        _ => Delivery::Reference,
    }
}
