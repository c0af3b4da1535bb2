//! The files that a configuration is made of: whoever waits for changes looks at these.

use std::path::{Path, PathBuf};

use super::file::included;
use super::flat::Flat;
use super::kind::Kind;
use super::node::{Data, Node, Table};
use super::settings::find;

/// Written by the program itself, which must not wake it.
const WRITTEN: [&str; 1] = ["admin.audit_file"];

/// The file itself, what it includes, what its strings refer to, and what its settings name:
/// certificates, keys, tokens. A folder stands for the files in it whose names nobody knows yet.
pub(super) fn files(file: &Path, folder: &Path, table: &Table, flat: &Flat) -> Vec<PathBuf> {
    let mut files = vec![file.to_owned()];
    files.extend(included(folder, table));
    for node in table.values() {
        referred(folder, node, &mut files);
    }
    for (path, _) in flat.leaves().filter(|(path, _)| !WRITTEN.contains(path)) {
        let named = match find(path).map(|setting| &setting.kind) {
            Some(Kind::File(_)) => flat.text(path).into_iter().collect(),
            Some(Kind::List(Kind::File(_))) => flat.texts(path),
            Some(_) | None => Vec::new(),
        };
        files.extend(named.into_iter().map(|name| folder.join(name)));
    }
    files.sort();
    files.dedup();
    files
}

/// Adds the files of every `${file:path}`.
fn referred(folder: &Path, node: &Node, files: &mut Vec<PathBuf>) {
    match &node.data {
        Data::Text(text) => {
            // What could not be read still stands there as it was written.
            let written = text.written.as_deref().unwrap_or(&text.value);
            for reference in written.split("${file:").skip(1) {
                files.extend(reference.split_once('}').map(|(path, _)| folder.join(path)));
            }
        }
        Data::List(nodes) => nodes.iter().for_each(|node| referred(folder, node, files)),
        Data::Table(table) => table.values().for_each(|node| referred(folder, node, files)),
        Data::Integer(_) | Data::Float | Data::Flag(_) | Data::Date => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{Config, Env, Options};

    /// Somebody who writes the file that is missing, or puts the other one right, is noticed.
    #[test]
    fn what_a_wrong_file_names_is_known_too() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let files = || {
            let options = Options::default();
            Config::files_of(&at("a.toml"), &Env::default(), &options)
        };
        assert_eq!(files(), [at("a.toml")], "there is none");
        let text = "version = 1\ninclude = ['b.toml']\nnonsense = 7\n[server]\n\
                    upstream = '${file:host}'\nupstream_ca_file = 'ca.pem'\n";
        fs::write(at("a.toml"), text).unwrap();
        assert!(Config::load(&at("a.toml"), &Env::default()).is_err());
        for named in ["a.toml", "b.toml", "ca.pem", "host"] {
            assert!(files().contains(&at(named)), "{named} in {:?}", files());
        }
        fs::write(at("a.toml"), "version = 1\n[server\n").unwrap();
        assert_eq!(files(), [at("a.toml")], "no grammar");
    }

    #[test]
    fn everything_that_was_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("conf.d")).unwrap();
        write("host", "127.0.0.1");
        write(
            "a.toml",
            "version = 1\ninclude = ['conf.d/*.toml']\n[server]\n\
             upstream = 'http://${file:host}:3000'\nupstream_ca_file = 'ca.pem'\n\
             [admin]\naudit_file = 'audit.jsonl'\n",
        );
        write("conf.d/b.toml", "[store]\nencrypt_with_files = ['one.key', '/two.key']\n");
        let config = Config::load(&folder.path().join("a.toml"), &Env::default()).unwrap();
        let shown = |file: &std::path::PathBuf| {
            file.strip_prefix(folder.path()).unwrap_or(file).display().to_string()
        };
        let mut files: Vec<String> = config.files.iter().map(shown).collect();
        files.sort();
        let expected =
            ["/two.key", "a.toml", "ca.pem", "conf.d", "conf.d/b.toml", "host", "one.key"];
        assert_eq!(files, expected);
    }
}
