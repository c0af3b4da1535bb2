//! A toy payment provider: its books are a file of its own. It dedupes by key, and it is not part of
//! anybody's transaction.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;

pub struct Provider(pub PathBuf);

impl Provider {
    /// Charges once for a key, however often it is asked.
    pub fn charge(&self, key: &str, cents: i64) -> io::Result<String> {
        let books = self.books()?;
        let known = books.iter().position(|line| line.starts_with(key));
        if known.is_none() {
            let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
            writeln!(file, "{key} {cents}")?;
            file.sync_all()?;
        }
        Ok(format!("ch_{}", known.unwrap_or(books.len()) + 1))
    }

    pub fn books(&self) -> io::Result<Vec<String>> {
        match fs::read_to_string(&self.0) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
