//! Tables for people.

/// Lines up columns under their names. The last column is not padded, so that no line ends in
/// spaces.
pub(super) fn table(names: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
    let all = || std::iter::once(&head).chain(rows);
    let widths: Vec<usize> = (0..names.len())
        .map(|at| all().filter_map(|row| row.get(at)).map(|cell| width(cell)).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in all() {
        for (at, (cell, wide)) in row.iter().zip(&widths).enumerate() {
            text.push_str(cell);
            if at + 1 < row.len() {
                text.push_str(&" ".repeat(wide.saturating_sub(width(cell)) + 2));
            }
        }
        text.push('\n');
    }
    text
}

/// Names and what belongs to them, one a line.
pub(super) fn pairs(rows: &[(&str, String)]) -> String {
    let wide = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        format!("{name}{}  {value}\n", " ".repeat(wide.saturating_sub(width(name))))
    };
    rows.iter().map(line).collect()
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_names() {
        let rows = [vec!["a".to_owned(), "long é".to_owned(), "x".to_owned()]];
        assert_eq!(table(&["one", "two", "three"], &rows), "ONE  TWO     THREE\na    long é  x\n");
        assert_eq!(pairs(&[("a", "1".into()), ("bcd", "2".into())]), "a    1\nbcd  2\n");
    }
}
