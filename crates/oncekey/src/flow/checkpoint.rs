//! What a step leaves behind, as bytes and back.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::halt::{Drift, Halt};

/// A value that a step can leave behind: anything that serde can write and read.
pub trait Checkpoint: Serialize + DeserializeOwned + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Checkpoint for T {}

/// The largest output of a step. It is read at every takeover, and belongs in a table of the
/// application if it is larger.
pub(crate) const LARGEST: usize = 1 << 20;

/// The bytes of an output.
pub(crate) fn encode<T: Serialize>(step: &str, value: &T) -> Result<Vec<u8>, Halt> {
    let bytes = serde_json::to_vec(value)
        .map_err(|_| Halt::park(format!("the output of step {step} has no form in JSON")))?;
    if bytes.len() > LARGEST {
        return Err(Halt::park(format!(
            "the output of step {step} has {} bytes and may have {LARGEST}",
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// The output as a value. What does not fit is drift, never a wrong value.
pub(crate) fn decode<T: Checkpoint>(
    step: &str,
    stored: &str,
    bytes: &[u8],
    aliases: &[(String, String)],
) -> Result<T, Drift> {
    let wanted = shape::<T>();
    let renamed = |(old, new): &(String, String)| *old == stored && *new == wanted;
    let drift =
        || Drift::Shape { step: step.to_owned(), stored: stored.to_owned(), wanted: shape::<T>() };
    if stored != wanted && !aliases.iter().any(renamed) {
        return Err(drift());
    }
    serde_json::from_slice(bytes).map_err(|_| drift())
}

/// The name of a type without the modules that it lives in: moving it changes nothing.
pub(crate) fn shape<T>() -> String {
    let full = std::any::type_name::<T>();
    let mut out = String::with_capacity(full.len());
    let mut start = 0;
    for (at, sign) in full.char_indices() {
        if !(sign.is_alphanumeric() || sign == '_' || sign == ':') {
            push_last(&mut out, &full[start..at]);
            out.push(sign);
            start = at + sign.len_utf8();
        }
    }
    push_last(&mut out, &full[start..]);
    // What the columns hold. A longer one is cut in the same way every time.
    out.truncate(out.floor_char_boundary(250));
    out
}

fn push_last(out: &mut String, path: &str) {
    out.push_str(path.rsplit("::").next().unwrap_or(path));
}

/// The digest of arguments.
pub(crate) fn digest<T: Serialize + ?Sized>(value: &T) -> Result<[u8; 32], Halt> {
    let bytes = serde_json::to_vec(value)
        .map_err(|_| Halt::park("arguments that are bound have no form in JSON"))?;
    Ok(Sha256::digest(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct RideId(i64);
    #[derive(serde::Serialize, serde::Deserialize, Debug)]
    struct ChargeId(i64);

    #[test]
    fn a_shape_is_the_name_without_its_modules() {
        assert_eq!(shape::<RideId>(), "RideId");
        assert_eq!(shape::<Option<Vec<RideId>>>(), "Option<Vec<RideId>>");
        assert_eq!(shape::<(RideId, String)>(), "(RideId, String)");
        assert_eq!(shape::<()>(), "()");
    }

    #[test]
    fn another_type_with_the_same_bytes_is_drift() {
        let bytes = encode("ride", &RideId(7)).unwrap();
        assert_eq!(decode::<RideId>("ride", "RideId", &bytes, &[]), Ok(RideId(7)));
        assert!(decode::<ChargeId>("ride", "RideId", &bytes, &[]).is_err());
        let aliases = [("RideId".to_owned(), "ChargeId".to_owned())];
        assert_eq!(decode::<ChargeId>("ride", "RideId", &bytes, &aliases).unwrap().0, 7);
        assert!(decode::<RideId>("ride", "RideId", b"\"seven\"", &[]).is_err());
    }
}
