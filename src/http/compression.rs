//! Content negotiation of response bodies (RFC 9110 §12.5.3) and the encoders.

use std::io::{self, Write};

use bytes::{BufMut, Bytes, BytesMut};

/// How a response body travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// As it is.
    Identity,
    /// RFC 1952
    Gzip,
    /// RFC 8878
    Zstd,
}

impl Coding {
    /// The value of `Content-Encoding`; `None` for identity.
    pub const fn header(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }

    /// The coding that an `Accept-Encoding` header prefers. At equal weight
    /// zstd comes before gzip before identity. A header that refuses everything
    /// is answered with identity, as is a missing one.
    pub fn negotiate(header: Option<&str>) -> Self {
        let Some(header) = header else {
            return Self::Identity;
        };
        let mut weights = Weights::default();
        for item in header.split(',') {
            let mut parts = item.split(';');
            let name = parts.next().unwrap_or_default().trim();
            let weight = parts
                .find_map(|parameter| {
                    let (key, value) = parameter.split_once('=')?;
                    key.trim()
                        .eq_ignore_ascii_case("q")
                        .then(|| thousandths(value.trim()))
                })
                .unwrap_or(1000);
            if name.eq_ignore_ascii_case("zstd") {
                weights.zstd = Some(weight);
            } else if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") {
                weights.gzip = Some(weight);
            } else if name.eq_ignore_ascii_case("identity") {
                weights.identity = Some(weight);
            } else if name == "*" {
                weights.rest = Some(weight);
            }
        }
        weights.best()
    }
}

#[derive(Default)]
struct Weights {
    zstd: Option<u16>,
    gzip: Option<u16>,
    identity: Option<u16>,
    rest: Option<u16>,
}

impl Weights {
    fn best(&self) -> Coding {
        let of = |own: Option<u16>| own.or(self.rest).unwrap_or(0);
        let (zstd, gzip) = (of(self.zstd), of(self.gzip));
        // Identity counts only when it is named: "acceptable unless excluded"
        // gives it no preference over a coding the client asks for.
        let identity = self.identity.unwrap_or(0);
        let best = zstd.max(gzip);
        if best == 0 || identity > best {
            Coding::Identity
        } else if zstd == best {
            Coding::Zstd
        } else {
            Coding::Gzip
        }
    }
}

/// A weight such as `0.75` in thousandths; garbage counts as a refusal.
fn thousandths(text: &str) -> u16 {
    let Ok(weight) = text.parse::<f32>() else {
        return 0;
    };
    if (0.0..=1.0).contains(&weight) {
        // In range, so the cast is exact enough for three digits.
        (weight * 1000.0).round() as u16
    } else {
        0
    }
}

/// Low enough that compressing costs less than sending on a fast line.
const ZSTD_LEVEL: i32 = 1;
const GZIP_LEVEL: u32 = 3;

/// A running encoder whose output is taken chunk by chunk.
pub enum Compressor {
    /// No coding.
    Identity(BytesMut),
    /// gzip
    Gzip(Box<flate2::write::GzEncoder<Output>>),
    /// zstd
    Zstd(Box<zstd::stream::write::Encoder<'static, Output>>),
}

/// Where encoders write.
#[derive(Default)]
pub struct Output(BytesMut);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.put_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Compressor {
    /// A fresh encoder.
    ///
    /// # Errors
    /// When zstd cannot allocate its context.
    pub fn new(coding: Coding) -> io::Result<Self> {
        Ok(match coding {
            Coding::Identity => Self::Identity(BytesMut::new()),
            Coding::Gzip => Self::Gzip(Box::new(flate2::write::GzEncoder::new(
                Output::default(),
                flate2::Compression::new(GZIP_LEVEL),
            ))),
            Coding::Zstd => Self::Zstd(Box::new(zstd::stream::write::Encoder::new(
                Output::default(),
                ZSTD_LEVEL,
            )?)),
        })
    }

    /// Takes in `bytes`.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Identity(out) => {
                out.put_slice(bytes);
                Ok(())
            }
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder) => encoder.write_all(bytes),
        }
    }

    /// What came out so far.
    pub fn take(&mut self) -> Bytes {
        match self {
            Self::Identity(out) => out.split().freeze(),
            Self::Gzip(encoder) => encoder.get_mut().0.split().freeze(),
            Self::Zstd(encoder) => encoder.get_mut().0.split().freeze(),
        }
    }

    /// Ends the stream and returns the rest.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn finish(self) -> io::Result<Bytes> {
        Ok(match self {
            Self::Identity(out) => out.freeze(),
            Self::Gzip(encoder) => encoder.finish()?.0.freeze(),
            Self::Zstd(encoder) => encoder.finish()?.0.freeze(),
        })
    }
}

/// Encodes a whole body at once.
///
/// # Errors
/// When the encoder fails.
pub fn compress(coding: Coding, body: &[u8]) -> io::Result<Bytes> {
    let mut compressor = Compressor::new(coding)?;
    compressor.write(body)?;
    compressor.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn negotiation_follows_the_weights() {
        let cases = [
            (None, Coding::Identity),
            (Some(""), Coding::Identity),
            (Some("gzip, deflate, br, zstd"), Coding::Zstd),
            (Some("gzip"), Coding::Gzip),
            (Some("GZip"), Coding::Gzip),
            (Some("x-gzip"), Coding::Gzip),
            (Some("br"), Coding::Identity),
            (Some("zstd;q=0.5, gzip;q=0.8"), Coding::Gzip),
            (Some("zstd;q=0, gzip"), Coding::Gzip),
            (Some("zstd;q=0, gzip;q=0"), Coding::Identity),
            (Some("*"), Coding::Zstd),
            (Some("*;q=0.1, gzip"), Coding::Gzip),
            (Some("zstd;q=0,*"), Coding::Gzip),
            (Some("identity, gzip;q=0.5"), Coding::Identity),
            (Some("identity;q=0.5, gzip"), Coding::Gzip),
            (Some("identity, gzip"), Coding::Gzip),
            (Some("identity;q=0"), Coding::Identity),
            (Some("gzip ; Q=1.0 , zstd ; q=0.999"), Coding::Gzip),
            (Some("zstd;q=nonsense, gzip;q=0.1"), Coding::Gzip),
            (Some("zstd;q=7"), Coding::Identity),
            (Some(",,;q=1,"), Coding::Identity),
        ];
        for (header, expected) in cases {
            assert_eq!(Coding::negotiate(header), expected, "{header:?}");
        }
    }

    #[test]
    fn every_coding_gives_the_bytes_back() {
        let body: Vec<u8> = (0..200_000u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        let gzip = compress(Coding::Gzip, &body).unwrap();
        let mut back = Vec::new();
        flate2::read::GzDecoder::new(&gzip[..])
            .read_to_end(&mut back)
            .unwrap();
        assert_eq!(back, body);
        let zstd = compress(Coding::Zstd, &body).unwrap();
        assert_eq!(zstd::decode_all(&zstd[..]).unwrap(), body);
        assert!(zstd.len() < body.len() && gzip.len() < body.len());
        assert_eq!(compress(Coding::Identity, &body).unwrap(), body);
    }

    #[test]
    fn chunks_taken_on_the_way_make_one_stream() {
        let mut compressor = Compressor::new(Coding::Zstd).unwrap();
        let mut sent = Vec::new();
        for round in 0..50u8 {
            let noise: Vec<u8> = (0..10_000u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ round)
                .collect();
            compressor.write(&noise).unwrap();
            sent.extend_from_slice(&compressor.take());
        }
        assert!(!sent.is_empty());
        sent.extend_from_slice(&compressor.finish().unwrap());
        assert_eq!(zstd::decode_all(&sent[..]).unwrap().len(), 500_000);
    }
}
