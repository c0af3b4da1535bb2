//! Columns of text.

/// A table with a line of headings. The first column is flush left, the others flush right.
#[derive(Debug)]
pub struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// A table without lines.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        Self { lines: vec![headings.iter().map(|&heading| heading.to_owned()).collect()] }
    }

    /// Adds a line.
    pub fn add(&mut self, cells: Vec<String>) {
        self.lines.push(cells);
    }

    /// The whole table, with a line end after every line.
    #[must_use]
    pub fn text(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &self.lines {
            let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// A number of operations, without pretending to more digits than there are.
pub fn count(number: f64) -> String {
    let rounded = number.round();
    let digits = format!("{:.0}", rounded.abs());
    let mut text = String::from(if rounded < 0.0 { "-" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Microseconds as milliseconds.
pub fn millis(micros: f64) -> String {
    if micros < 100.0 { format!("{:.3}", micros / 1e3) } else { format!("{:.2}", micros / 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["what", "per second"]);
        table.add(vec!["claim".to_owned(), count(1_234_567.4)]);
        table.add(vec!["replay".to_owned(), count(999.0)]);
        assert_eq!(table.text(), "what    per second\nclaim    1 234 567\nreplay         999\n");
    }

    #[test]
    fn numbers_have_groups_of_three_digits_and_a_sign() {
        let shown = [0.4, -0.4, -968.0, -1_713.2, 1e6].map(count);
        assert_eq!(shown, ["0", "0", "-968", "-1 713", "1 000 000"]);
    }
}
