//! What Postgres refuses to store, decided before anything is sent: a NUL in a
//! text, and JSON that its `jsonb` cannot hold.

use serde::de::IgnoredAny;

/// Deeper nesting could exhaust the server's stack.
const MAX_DEPTH: usize = 1000;
/// Limits of `numeric`, with room for its rounding to groups of four digits.
const MAX_INTEGER_DIGITS: i64 = 131_000;
const MAX_FRACTION_DIGITS: i64 = 16_300;
/// `jsonb` holds strings up to 256 MiB; what is near that is not worth a column.
const MAX_BYTES: usize = 64 << 20;

/// Whether a text column can hold it.
pub(super) fn text(text: &str) -> bool {
    !text.as_bytes().contains(&0)
}

/// The text that bounds stored texts as `bound` does: none of them holds a NUL, so above
/// one with a NUL is what is above the part before it.
pub(super) fn bound(bound: &str) -> &str {
    bound.split('\0').next().unwrap_or_default()
}

/// Whether `text::jsonb` would succeed.
pub(super) fn jsonb(text: &str) -> bool {
    text.len() <= MAX_BYTES
        && serde_json::from_str::<IgnoredAny>(text).is_ok()
        && holdable(text.as_bytes())
}

/// Looks at valid JSON for what only `jsonb` minds.
fn holdable(json: &[u8]) -> bool {
    let mut at = 0;
    let mut depth = 0_usize;
    while let Some(byte) = json.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return false;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => match string_end(json, at) {
                Some(end) => at = end,
                None => return false,
            },
            b'-' | b'0'..=b'9' => match number_end(json, at - 1) {
                Some(end) => at = end,
                None => return false,
            },
            _ => {}
        }
    }
    true
}

/// The position after the closing quote; `None` for an escape that is no character.
fn string_end(json: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' if json.get(at + 1)? == &b'u' => {
                let unit = escape(json, at)?;
                at += 6;
                match unit {
                    0 | 0xdc00..=0xdfff => return None,
                    0xd800..=0xdbff => {
                        if !(0xdc00..=0xdfff).contains(&escape(json, at)?) {
                            return None;
                        }
                        at += 6;
                    }
                    _ => {}
                }
            }
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The code unit of a `\uXXXX` at that position.
fn escape(json: &[u8], at: usize) -> Option<u16> {
    let escape = json.get(at..at + 6)?;
    let digits = escape.strip_prefix(br"\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The position after a number; `None` when it has too many digits.
fn number_end(json: &[u8], start: usize) -> Option<usize> {
    let is_part = |byte: &&u8| matches!(**byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let length = json[start..].iter().take_while(is_part).count();
    let number = std::str::from_utf8(&json[start..start + length]).ok()?;
    let (mantissa, exponent) = match number.find(['e', 'E']) {
        Some(at) => (&number[..at], number[at + 1..].parse::<i32>().ok()?),
        None => (number, 0),
    };
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| i64::try_from(part.len()).unwrap_or(i64::MAX);
    let exponent = i64::from(exponent);
    let fits = digits(integer).saturating_add(exponent) <= MAX_INTEGER_DIGITS
        && digits(fraction).saturating_sub(exponent) <= MAX_FRACTION_DIGITS;
    fits.then_some(start + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_jsonb_refuses_is_known() {
        for text in [
            r#""\u0000""#,
            r#"{"a\u0000b":1}"#,
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800\n""#,
            r#""\ud800\ud800""#,
            "1e200000",
            "1e-20000",
            "1e99999999999",
            "{",
            "01",
            "nul",
            "",
        ] {
            assert!(!jsonb(text), "{text}");
        }
        assert!(!jsonb(&format!("{}{}", "[".repeat(1001), "]".repeat(1001))));
        for text in [
            r#""\\u0000""#,
            r#""\ud83d\ude00""#,
            r#"{"a":[1,-2.5e3,true,null,"x\"y"]}"#,
            " [ ] ",
            "1e300",
        ] {
            assert!(jsonb(text), "{text}");
        }
    }
}
