//! Records: looking at them, and saying what became of them.

mod answer;
mod change;
mod list;
mod show;
mod view;

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;
use oncekey::core::KeyId;

pub(super) use self::change::{erase, expire, release, resolve};
pub(super) use self::list::list;
pub(super) use self::show::show;
use super::problem::Problem;

/// The key id in a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordId(KeyId);

impl<S: Send + Sync> FromRequestParts<S> for RecordId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        // A path that is no text is no id either.
        parse_id(&path.map(|Path(id)| id).unwrap_or_default()).map(Self)
    }
}

/// Reads a key id: 64 hexadecimal digits.
pub(super) fn parse_id(text: &str) -> Result<KeyId, Problem> {
    let wrong = || Problem::invalid("a key id has 64 hexadecimal digits");
    let bytes = from_hex(text).ok_or_else(wrong)?;
    bytes.try_into().map(KeyId::from_bytes).map_err(|_| wrong())
}

/// Reads hexadecimal digits, two for each byte.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    });
    pairs.collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = KeyId::from_bytes(std::array::from_fn(|at| u8::try_from(at * 7).unwrap()));
        assert_eq!(parse_id(&id.to_string()).unwrap(), id);
        assert_eq!(from_hex(&to_hex(&[0, 15, 255])), Some(vec![0, 15, 255]));
        let long = "0".repeat(66);
        for wrong in ["", "0", "zz", &long[..62], &long[..63], &long, "%00", "é"] {
            assert!(parse_id(wrong).is_err(), "{wrong}");
        }
    }
}
