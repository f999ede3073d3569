//! The canonical BlobRef document (§5.9.1).

use crate::json::object_members;
use crate::primitives::MAX_SAFE_INTEGER;

/// Whether `text` is a canonical BlobRef: members in the order `blobId`,
/// `byteLength`, `mediaType`, `name`, the last two optional, no white space.
pub fn is_blob_ref(text: &str) -> bool {
    blob_id(text).is_some()
}

/// The `blobId` of a canonical BlobRef.
pub fn blob_id(text: &str) -> Option<String> {
    let members = object_members(text)?;
    let mut rest = members.iter();
    let (key, id) = rest.next()?;
    let id: String = serde_json::from_str(id.get()).ok()?;
    if key != "blobId" || !is_content_address(&id) {
        return None;
    }
    let (key, length) = rest.next()?;
    let length: i64 = serde_json::from_str(length.get()).ok()?;
    if key != "byteLength" || !(0..=MAX_SAFE_INTEGER).contains(&length) {
        return None;
    }
    let mut optional = ["mediaType", "name"].iter();
    for (key, value) in rest {
        optional.find(|name| *name == key)?;
        serde_json::from_str::<String>(value.get()).ok()?;
    }
    // With every member known, white space can only stand between tokens.
    let compact: usize = 2
        + members
            .iter()
            .map(|(key, value)| key.len() + 3 + value.get().len())
            .sum::<usize>()
        + members.len().saturating_sub(1);
    (text.len() == compact).then_some(id)
}

/// Whether `id` is `sha256:` and 64 lowercase hex digits.
pub fn is_content_address(id: &str) -> bool {
    id.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64
            && hex
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sha256:c24f8baa413f0d38cfa8babdb0c095b421eeaf47ce0d85050111958f57f6668c";

    #[test]
    fn canonical_documents_are_accepted() {
        for tail in [
            "",
            ",\"mediaType\":\"image/png\"",
            ",\"name\":\"a \\\"b\\\"\"",
            ",\"mediaType\":\"x\",\"name\":\"é\"",
        ] {
            let text = format!("{{\"blobId\":\"{ID}\",\"byteLength\":0{tail}}}");
            assert_eq!(blob_id(&text).as_deref(), Some(ID), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let hex = &ID[7..];
        for text in [
            format!("{{\"byteLength\":0,\"blobId\":\"{ID}\"}}"),
            format!("{{\"blobId\":\"{ID}\",\"byteLength\":-1}}"),
            format!("{{\"blobId\":\"{ID}\",\"byteLength\":1.5}}"),
            format!("{{\"blobId\":\"{ID}\",\"byteLength\":9007199254740992}}"),
            format!("{{\"blobId\":\"{ID}\"}}"),
            format!("{{\"blobId\":\"{ID}\",\"byteLength\":0,\"name\":\"n\",\"mediaType\":\"m\"}}"),
            format!("{{\"blobId\":\"{ID}\",\"byteLength\":0,\"name\":null}}"),
            format!("{{\"blobId\":\"{ID}\",\"byteLength\":0,\"other\":\"n\"}}"),
            format!("{{\"blobId\":\"{ID}\", \"byteLength\":0}}"),
            format!(" {{\"blobId\":\"{ID}\",\"byteLength\":0}}"),
            format!("{{\"blobId\":\"{}\",\"byteLength\":0}}", ID.to_uppercase()),
            format!("{{\"blobId\":\"{hex}\",\"byteLength\":0}}"),
            "null".to_owned(),
            "[]".to_owned(),
        ] {
            assert!(!is_blob_ref(&text), "{text}");
        }
    }
}
