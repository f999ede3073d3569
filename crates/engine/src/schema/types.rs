//! Names of column types as schema documents and stored layouts write them (§2.4).

use ssp2::ColumnType;

const NAMES: [(ColumnType, &str); 8] = [
    (ColumnType::String, "string"),
    (ColumnType::Integer, "integer"),
    (ColumnType::Float, "float"),
    (ColumnType::Boolean, "boolean"),
    (ColumnType::Json, "json"),
    (ColumnType::Bytes, "bytes"),
    (ColumnType::BlobRef, "blob_ref"),
    (ColumnType::Crdt, "crdt"),
];

/// The name of a type.
pub const fn type_name(ty: ColumnType) -> &'static str {
    match ty {
        ColumnType::String => "string",
        ColumnType::Integer => "integer",
        ColumnType::Float => "float",
        ColumnType::Boolean => "boolean",
        ColumnType::Json => "json",
        ColumnType::Bytes => "bytes",
        ColumnType::BlobRef => "blob_ref",
        ColumnType::Crdt => "crdt",
    }
}

/// The type of that name.
pub fn parse_type(name: &str) -> Option<ColumnType> {
    NAMES
        .iter()
        .find(|(_, known)| *known == name)
        .map(|(ty, _)| *ty)
}
