//! Which callers a route protects while protection is rolled out.
//!
//! A caller falls into one of ten thousand boxes by a digest, and the first boxes are in. So the
//! same caller always gets the same answer, on every node and after every restart, and whoever was
//! in at ten percent is in at twenty. All routes use the same boxes: one caller is not protected
//! here and left alone there. Who is not in is treated as in observe mode.

use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use oncekey::core::Scope;
use sha2::{Digest as _, Sha256};

use super::spec::{SpecError, header};

/// The part of a route's callers that is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rollout {
    /// How many of a hundred.
    pub(crate) percent: u8,
    pub(crate) by: RolloutBy,
    /// Who is left alone, whatever the percentage.
    pub(crate) exempt: Vec<Exempt>,
}

/// What is drawn lots for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RolloutBy {
    /// The scope: a caller is in or out with everything.
    Scope,
    /// The key: every caller is in with a part of its requests, and with all attempts of each.
    Key,
}

/// Somebody who is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exempt {
    /// The scope, as it is.
    Scope(String),
    /// A header with this value.
    Header(HeaderName, String),
}

/// Fine enough for a percentage with two places after the point, should one ever be needed.
const BOXES: u64 = 10_000;

impl Rollout {
    /// Whether nobody has to be asked who they are.
    pub(crate) fn is_for_all(&self) -> bool {
        self.percent >= 100 && self.exempt.is_empty()
    }

    /// Whether a request belongs to those who are protected. `drawn` is the scope or the key,
    /// whichever [`by`](Self::by) names.
    pub(crate) fn includes(&self, drawn: &[u8]) -> bool {
        if self.percent >= 100 {
            return true;
        }
        let digest =
            Sha256::new().chain_update("oncekey rollout v1").chain_update(drawn).finalize();
        let number = digest.iter().take(8).fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
        number % BOXES < u64::from(self.percent) * (BOXES / 100)
    }

    /// Whether somebody is left alone by name.
    pub(crate) fn exempts(&self, scope: Option<&Scope>, headers: &HeaderMap) -> bool {
        self.exempt.iter().any(|exempt| match exempt {
            Exempt::Scope(name) => {
                scope.is_some_and(|scope| Ok(scope) == Scope::new(name).as_ref())
            }
            Exempt::Header(name, value) => {
                headers.get_all(name).iter().any(|line| line.as_bytes() == value.as_bytes())
            }
        })
    }
}

impl FromStr for Exempt {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split_once(':') {
            Some(("scope", "")) => Err(SpecError::Empty),
            Some(("scope", name)) => Ok(Self::Scope(name.to_owned())),
            Some(("header", line)) => {
                let (name, value) = line.split_once('=').ok_or(SpecError::Empty)?;
                Ok(Self::Header(header(name)?, value.to_owned()))
            }
            Some(_) | None => Err(SpecError::Unknown(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn at(percent: u8) -> Rollout {
        Rollout { percent, by: RolloutBy::Scope, exempt: Vec::new() }
    }

    #[test]
    fn whoever_is_in_stays_in_when_the_percentage_grows() {
        for caller in 0..500 {
            let name = format!("caller {caller}");
            let first = (0..=100).find(|percent| at(*percent).includes(name.as_bytes()));
            let first = first.expect("at 100 percent everybody is in");
            assert!((first..=100).all(|percent| at(percent).includes(name.as_bytes())));
            assert!(!at(0).includes(name.as_bytes()));
        }
    }

    #[test]
    fn about_as_many_are_in_as_was_said() {
        let callers = (0..10_000).map(|caller: u32| caller.to_be_bytes());
        let inside = callers.filter(|caller| at(30).includes(caller)).count();
        assert!((2_800..3_200).contains(&inside), "{inside}");
    }

    /// A new version that drew other lots would move callers in and out in the middle of a retry.
    #[test]
    fn the_boxes_never_change() {
        let inside: Vec<u8> = (0..20).filter(|caller| at(25).includes(&[*caller])).collect();
        assert_eq!(inside, [1, 3, 7, 9, 11, 14, 16, 17]);
    }

    #[test]
    fn some_are_left_alone_by_name() {
        let exempt =
            vec!["scope:acme".parse().unwrap(), "header:X-Client=old app".parse().unwrap()];
        let rollout = Rollout { exempt, ..at(100) };
        let mut headers = HeaderMap::new();
        let scope = |name: &str| Scope::new(name).unwrap();
        assert!(rollout.exempts(Some(&scope("acme")), &headers));
        assert!(!rollout.exempts(Some(&scope("other")), &headers));
        assert!(!rollout.exempts(None, &headers));
        headers.insert("x-client", HeaderValue::from_static("old app"));
        assert!(rollout.exempts(Some(&scope("other")), &headers));
        for wrong in ["acme", "scope:", "header:x", "caller:acme"] {
            assert!(wrong.parse::<Exempt>().is_err(), "{wrong}");
        }
    }
}
