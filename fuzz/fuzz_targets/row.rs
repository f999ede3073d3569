//! Any bytes as a row: the first say the columns, the others are the payload.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use ssp2::{
    Column, ColumnType, decode_row, decode_sparse_row, encode_row, encode_sparse_row,
    render_sparse_row,
};

fuzz_target!(|data: &[u8]| {
    let Some((count, rest)) = data.split_first() else {
        return;
    };
    let count = usize::from(count % 24);
    let Some((columns, payload)) = rest.split_at_checked(count) else {
        return;
    };
    let columns: Vec<Column> = columns
        .iter()
        .enumerate()
        .filter_map(|(index, byte)| {
            Some(Column {
                name: format!("c{index}"),
                ty: ColumnType::from_tag(byte % 8 + 1)?,
                nullable: byte & 0x80 != 0,
            })
        })
        .collect();
    let payload = Bytes::copy_from_slice(payload);
    if let Ok(values) = decode_row(&columns, &payload) {
        assert_eq!(encode_row(&columns, &values).as_ref(), Ok(&payload));
    }
    let key = count / 2;
    if let Ok(row) = decode_sparse_row(&columns, key, &payload) {
        assert_eq!(encode_sparse_row(&columns, key, &row).as_ref(), Ok(&payload));
        render_sparse_row(&columns, key, &payload).expect("what decodes renders");
    }
});
