//! Guesses which word somebody meant.

/// The known word that is closest to what was written, if one is close.
pub(crate) fn closest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = word.to_lowercase();
    // A third of the letters may be wrong: more is another word.
    let limit = (word.chars().count() / 3).max(1);
    let distances = known.into_iter().map(|known| (distance(&word, &known.to_lowercase()), known));
    let near = distances.filter(|(distance, _)| *distance <= limit);
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// How many letters have to be put in, taken out, changed or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let changed = rows[i][j] + usize::from(a != b);
            let mut best = changed.min(rows[i][j + 1] + 1).min(row[j] + 1);
            let swapped = i > 0 && j > 0 && from[i - 1] == *b && to[j - 1] == *a;
            if swapped {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_guessed_and_another_word_is_not() {
        let known = ["mode", "methods", "match", "listen"];
        for (word, meant) in
            [("modee", "mode"), ("mdoe", "mode"), ("method", "methods"), ("LISTEN", "listen")]
        {
            assert_eq!(closest(word, known), Some(meant));
        }
        assert_eq!(closest("timeout", known), None);
        assert_eq!(closest("", known), None);
    }
}
