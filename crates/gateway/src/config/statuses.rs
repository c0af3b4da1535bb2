//! Which answers a rule of the `record` table is about.

use oncekey::core::policy::{Keep, PolicyError, Statuses, Verdict};

/// Reads `2xx`, `404`, `429,503` or `500-599`.
pub(crate) fn read_statuses(text: &str) -> Result<Vec<Statuses>, String> {
    text.split(',').map(|part| read_range(part.trim())).collect()
}

/// Two rules that no answer could choose between.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) first: String,
    pub(crate) second: String,
    /// A status that both are about.
    pub(crate) status: u16,
}

/// Makes the table of what is kept. The narrowest rule wins, because a table has no order: `429`
/// goes before `400-499`, and that before everything that was not named.
pub(crate) fn read_record(rules: &[(String, Verdict)]) -> Result<Keep, Overlap> {
    let mut all: Vec<(Statuses, Verdict, &str)> = Vec::new();
    for (name, verdict) in rules {
        for statuses in read_statuses(name).unwrap_or_default() {
            let clash = all.iter().find(|(known, other, _)| {
                *other != *verdict && overlap(*known, statuses) && width(*known) == width(statuses)
                    || *other != *verdict && crosses(*known, statuses)
            });
            if let Some((known, _, first)) = clash {
                let status = known.from.max(statuses.from);
                return Err(Overlap { first: (*first).to_owned(), second: name.clone(), status });
            }
            all.push((statuses, *verdict, name));
        }
    }
    all.sort_by_key(|(statuses, _, _)| width(*statuses));
    let keep = all
        .into_iter()
        .try_fold(Keep::default(), |keep, (statuses, verdict, _)| keep.rule(statuses, verdict));
    keep.map_err(|_: PolicyError| Overlap {
        first: String::new(),
        second: String::new(),
        status: 0,
    })
}

fn read_range(text: &str) -> Result<Statuses, String> {
    let wrong = || format!("`{text}` names no statuses: write 2xx, 404, 429,503 or 500-599");
    let status = |text: &str| {
        let status = text.trim().parse::<u16>().ok().filter(|_| text.trim().len() == 3);
        status.filter(|status| (100..=599).contains(status)).ok_or_else(wrong)
    };
    if let Some(class) = text.strip_suffix("xx") {
        let from = status(&format!("{class}00"))?;
        return Ok(Statuses { from, to: from + 99 });
    }
    match text.split_once('-') {
        None => Ok(Statuses::only(status(text)?)),
        Some((from, to)) => {
            let (from, to) = (status(from)?, status(to)?);
            if from > to { Err(wrong()) } else { Ok(Statuses { from, to }) }
        }
    }
}

const fn width(statuses: Statuses) -> u16 {
    statuses.to - statuses.from
}

const fn overlap(a: Statuses, b: Statuses) -> bool {
    a.from <= b.to && b.from <= a.to
}

/// Whether two ranges share statuses and neither holds the other.
const fn crosses(a: Statuses, b: Statuses) -> bool {
    let a_holds_b = a.from <= b.from && b.to <= a.to;
    let b_holds_a = b.from <= a.from && a.to <= b.to;
    overlap(a, b) && !a_holds_b && !b_holds_a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_named_alone_in_ranges_and_in_classes() {
        let of = |from, to| Statuses { from, to };
        assert_eq!(read_statuses("2xx"), Ok(vec![of(200, 299)]));
        assert_eq!(read_statuses("429, 503"), Ok(vec![of(429, 429), of(503, 503)]));
        assert_eq!(read_statuses("500-599"), Ok(vec![of(500, 599)]));
        for wrong in ["", "xx", "20x", "2xx-3xx", "600", "99", "0404", "500-400", "-1", "6xx", "a"]
        {
            assert!(read_statuses(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_narrowest_rule_wins() {
        let rules = [
            ("4xx".to_owned(), Verdict::Keep),
            ("409".to_owned(), Verdict::Release),
            ("400-410".to_owned(), Verdict::Unknown),
        ];
        let keep = read_record(&rules).unwrap();
        assert_eq!(keep.verdict(409), Verdict::Release);
        assert_eq!(keep.verdict(404), Verdict::Unknown);
        assert_eq!(keep.verdict(429), Verdict::Keep);
    }

    #[test]
    fn rules_that_cross_are_refused() {
        let cross =
            [("400-450".to_owned(), Verdict::Keep), ("440-499".to_owned(), Verdict::Release)];
        assert_eq!(read_record(&cross).unwrap_err().status, 440);
        let twice = [("404".to_owned(), Verdict::Keep), ("404,405".to_owned(), Verdict::Release)];
        assert_eq!(read_record(&twice).unwrap_err().status, 404);
    }
}
