//! A toy partner: a warehouse, a card company, a carrier. Its books are a file of its own, it dedupes by
//! key, and it is not part of anybody's transaction.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;

#[derive(Clone)]
pub struct Partner(pub PathBuf);

impl Partner {
    /// Books an entry for a key that it has not seen. Says what it booked for that key the first time:
    /// a refusal is remembered like anything else.
    pub fn once(&self, key: &str, entry: &str) -> io::Result<String> {
        let known = self.books()?.into_iter().find(|(of, _)| of == key);
        if let Some((_, entry)) = known {
            return Ok(entry);
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        writeln!(file, "{key} {entry}")?;
        file.sync_all()?;
        Ok(entry.to_owned())
    }

    /// Takes back what was done under the key `of`, if it was done. If it was not, that key is used up:
    /// a request that arrives after it was taken back must do nothing.
    pub fn take_back(&self, key: &str, of: &str, undone: &str, done: &str) -> io::Result<()> {
        match self.once(of, "barred")?.starts_with(done) {
            true => self.once(key, undone).map(drop),
            false => Ok(()),
        }
    }

    /// How many entries say this.
    pub fn count(&self, word: &str) -> io::Result<usize> {
        Ok(self.books()?.iter().filter(|(_, entry)| entry.starts_with(word)).count())
    }

    fn books(&self) -> io::Result<Vec<(String, String)>> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let entry =
            |line: &str| line.split_once(' ').map(|(key, entry)| (key.into(), entry.into()));
        Ok(text.lines().filter_map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_back_before_it_arrived_does_nothing_when_it_does() {
        let name = format!("oncekey-partner-{}.txt", std::process::id());
        let partner = Partner(std::env::temp_dir().join(name));
        partner.take_back("undo", "key", "refunded", "charged").unwrap();
        assert_eq!(partner.once("key", "charged").unwrap(), "barred");
        assert_eq!(partner.count("charged").unwrap(), 0);
        assert_eq!(partner.count("refunded").unwrap(), 0);
        fs::remove_file(&partner.0).unwrap();
    }
}
