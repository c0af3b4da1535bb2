//! W3C trace context: which span of which trace a request belongs to.

use std::fmt;

use http::{HeaderMap, HeaderValue};
use oncekey::entropy::Entropy;

/// A span and its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    pub(super) flags: u8,
}

/// What a request says about its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It belongs to this span, whose trace is recorded.
    Recorded(Context),
    /// It belongs to a trace that whoever began it does not want to have recorded.
    Unwanted,
    /// Nothing, or nothing that makes sense.
    Nothing,
}

pub(super) const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const SAMPLED: u8 = 1;

impl Context {
    /// The first span of a new trace.
    pub(super) fn new(entropy: &dyn Entropy) -> Self {
        let mut trace = [0; 16];
        entropy.fill(&mut trace);
        // All zeros are no trace.
        trace[0] |= 1;
        Self { trace, span: span(entropy), flags: SAMPLED }
    }

    /// Another span of the same trace.
    pub(super) fn child(self, entropy: &dyn Entropy) -> Self {
        Self { span: span(entropy), ..self }
    }

    /// Reads what stands in a `traceparent`. A later version has more behind the flags.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = hex::<1>(parts.next()?)?;
        let (trace, span) = (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?);
        let [flags] = hex::<1>(parts.next()?)?;
        let ends = parts.next().is_none();
        let good = match version {
            [0] => ends,
            [0xff] => false,
            _ => true,
        };
        (good && trace != [0; 16] && span != [0; 8]).then_some(Self { trace, span, flags })
    }

    /// Writes it into a request, in place of what stood there.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        if let Ok(line) = HeaderValue::try_from(self.to_string()) {
            headers.insert(TRACEPARENT, line);
        }
    }
}

impl Said {
    /// By a request. One that names several traces names none; then what vendors say of it is
    /// about nothing, and goes.
    pub(super) fn by(headers: &mut HeaderMap) -> Self {
        let mut lines = headers.get_all(TRACEPARENT).iter();
        let only = match (lines.next(), lines.next()) {
            (Some(line), None) => line.to_str().ok().and_then(Context::parse),
            (None | Some(_), _) => None,
        };
        match only {
            Some(context) if context.flags & SAMPLED == 0 => Self::Unwanted,
            Some(context) => Self::Recorded(context),
            None => {
                headers.remove(TRACEPARENT);
                headers.remove(TRACESTATE);
                Self::Nothing
            }
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("00-")?;
        self.trace.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
        out.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
        write!(out, "-{:02x}", self.flags)
    }
}

fn span(entropy: &dyn Entropy) -> [u8; 8] {
    let mut span = [0; 8];
    entropy.fill(&mut span);
    span[0] |= 1;
    span
}

/// Small letters only, as the standard says.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(plain) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use oncekey::entropy::SystemEntropy;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_the_standard_allows_is_read_and_nothing_else() {
        assert_eq!(Context::parse(GOOD).unwrap().to_string(), GOOD);
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(Context::parse(later).is_some());
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-é4bf92f3577b34da6a3ce929d0e0e47-00f067aa0ba902b7-01",
        ] {
            assert_eq!(Context::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_request_is_believed_if_it_says_one_thing() {
        let said = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(TRACEPARENT, HeaderValue::from_static(line));
            }
            headers.insert(TRACESTATE, HeaderValue::from_static("a=b"));
            (Said::by(&mut headers), headers.len())
        };
        assert_eq!(said(&[GOOD]), (Said::Recorded(Context::parse(GOOD).unwrap()), 2));
        assert_eq!(said(&[GOOD, GOOD]), (Said::Nothing, 0));
        assert_eq!(said(&["nonsense"]), (Said::Nothing, 0));
        let unwanted = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert_eq!(said(&[unwanted]), (Said::Unwanted, 2));
    }

    #[test]
    fn a_child_is_another_span_of_the_same_trace() {
        let entropy = SystemEntropy::default();
        let parent = Context::new(&entropy);
        let child = parent.child(&entropy);
        assert_eq!((child.trace, child.flags), (parent.trace, parent.flags));
        assert_ne!(child.span, parent.span);
        assert_ne!(Context::new(&entropy).trace, parent.trace);
    }
}
