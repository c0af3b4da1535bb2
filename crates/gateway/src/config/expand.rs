//! `${env:NAME}` and `${file:path}` in strings.
//!
//! What they stand for may be a secret, so it is never shown: problems and `config show` print
//! the text of the file. `$${` stands for `${`.

use std::path::Path;

use super::env::Env;
use super::node::{Data, Node, Table};
use super::problem::ConfigProblem;
use super::source::SourceKind;

/// Larger files are no values of settings.
const MOST: usize = 64 * 1024;

/// Where values are looked for.
pub(crate) struct Around<'a> {
    pub(crate) env: &'a Env,
    /// The folder that paths begin in.
    pub(crate) folder: &'a Path,
}

impl Around<'_> {
    /// Replaces every reference in a table. What cannot be found is reported.
    pub(crate) fn expand(&self, table: &mut Table, problems: &mut Vec<ConfigProblem>) {
        for node in table.values_mut() {
            self.expand_node(node, problems);
        }
    }

    fn expand_node(&self, node: &mut Node, problems: &mut Vec<ConfigProblem>) {
        match &mut node.data {
            Data::Text(text) if text.value.contains("${") => match self.resolve(&text.value) {
                Ok(value) => {
                    text.written = Some(std::mem::replace(&mut text.value, value));
                }
                Err(message) => {
                    problems.push(ConfigProblem::error("unresolved", message).at(&node.at));
                }
            },
            Data::List(nodes) => {
                for node in nodes {
                    self.expand_node(node, problems);
                }
            }
            // What the program brings refers to nothing.
            Data::Table(_) if node.at.source.kind == SourceKind::Preset => {}
            Data::Table(table) => self.expand(table, problems),
            Data::Text(_) | Data::Integer(_) | Data::Float | Data::Flag(_) | Data::Date => {}
        }
    }

    fn resolve(&self, text: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            if let Some(before) = before.strip_suffix('$') {
                out += before;
                out += "${";
                rest = after;
                continue;
            }
            let (inside, after) = after.split_once('}').ok_or("a `${` has no `}`")?;
            out += before;
            out += &self.value(inside)?;
            rest = after;
        }
        Ok(out + rest)
    }

    fn value(&self, reference: &str) -> Result<String, String> {
        match reference.split_once(':') {
            Some(("env", name)) => match self.env.get(name).map(|value| value.to_str()) {
                Some(Some(value)) => Ok(value.to_owned()),
                Some(None) => Err(format!("the variable {name} is not UTF-8")),
                None => Err(format!("the variable {name} is not set")),
            },
            Some(("file", path)) => self.content(path),
            Some(_) | None => Err(format!(
                "`${{{reference}}}` is not known: write ${{env:NAME}} or ${{file:path}}"
            )),
        }
    }

    /// What stands in a file, without the line break at its end.
    fn content(&self, path: &str) -> Result<String, String> {
        let bytes = std::fs::read(self.folder.join(path))
            .map_err(|error| format!("cannot read {path}: {error}"))?;
        if bytes.len() > MOST {
            return Err(format!("{path} is too large for a setting"));
        }
        let text = String::from_utf8(bytes).map_err(|_| format!("{path} is not UTF-8"))?;
        Ok(text.trim_end_matches(['\n', '\r']).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<String, String> {
        let env = Env::from([("USER", "ann"), ("EMPTY", "")]);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("pw"), "hunter2\n").unwrap();
        Around { env: &env, folder: folder.path() }.resolve(text)
    }

    #[test]
    fn references_are_replaced() {
        for (text, expected) in [
            ("${env:USER}:${file:pw}@db", "ann:hunter2@db"),
            ("${env:EMPTY}x", "x"),
            ("$${env:USER}", "${env:USER}"),
            ("$5", "$5"),
        ] {
            assert_eq!(resolve(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn references_that_lead_nowhere_are_refused() {
        for (text, said) in [
            ("${env:NO}", "NO is not set"),
            ("${file:no}", "cannot read no"),
            ("${env:USER", "has no `}`"),
            ("${USER}", "write ${env:NAME}"),
        ] {
            assert!(resolve(text).unwrap_err().contains(said), "{text}");
        }
    }
}
