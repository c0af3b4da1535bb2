//! Reads the files of a configuration.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::node::{Clash, Data, Node, Table, merge, read_document};
use super::problem::ConfigProblem;
use super::source::{Place, Source, SourceKind};

/// Thousands of routes fit in; what is larger is not a configuration.
const MOST: u64 = 8 * 1024 * 1024;

/// Reads a file and everything that it includes. A table comes back with whatever could be read.
pub(crate) fn read(path: &Path) -> Result<(Table, Vec<ConfigProblem>), ConfigProblem> {
    let source =
        open(path, &path.display().to_string()).map_err(|problem| match path.exists() {
            true => problem,
            false => problem.note("name another file with -c"),
        })?;
    let (mut table, mut problems) = read_document(&source);
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let included = table.get("include").map(patterns).unwrap_or_default();
    for (pattern, at) in included {
        match names(folder, &pattern) {
            Ok(names) => {
                for name in names {
                    add(&mut table, &folder.join(&name), &at, &mut problems);
                }
            }
            Err(message) => problems.push(ConfigProblem::error("include", message).at(&at)),
        }
    }
    Ok((table, problems))
}

/// The files that a table includes, and the folders in which more of them may appear.
pub(super) fn included(folder: &Path, table: &Table) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (pattern, _) in table.get("include").map(patterns).unwrap_or_default() {
        let named = names(folder, &pattern).unwrap_or_default();
        files.extend(named.iter().map(|name| folder.join(name)));
        if pattern.contains('*') {
            files.extend(folder.join(&pattern).parent().map(listable));
        }
    }
    files
}

/// Opens a file as a text, or says plainly why not.
fn open(path: &Path, name: &str) -> Result<Arc<Source>, ConfigProblem> {
    let wrong = |message: String| ConfigProblem::error("unreadable", message);
    let about = fs::metadata(path).map_err(|error| {
        let missing = error.kind() == ErrorKind::NotFound;
        let unreadable = format!("cannot read {name}: {error}");
        wrong(if missing { format!("there is no file {name}") } else { unreadable })
    })?;
    if !about.is_file() {
        return Err(wrong(format!("{name} is not a file")));
    }
    if about.len() > MOST {
        return Err(wrong(format!("{name} is too large for a configuration")));
    }
    let bytes = fs::read(path).map_err(|error| wrong(format!("cannot read {name}: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count() + 1;
        ConfigProblem::error("not-utf8", format!("{name} is not UTF-8: see line {line}"))
    })?;
    Ok(Source::new(name, SourceKind::File, text))
}

/// Adds an included file. A setting that is there already is a mistake, whichever was meant.
fn add(table: &mut Table, path: &Path, at: &Place, problems: &mut Vec<ConfigProblem>) {
    let source = match open(path, &path.display().to_string()) {
        Ok(source) => source,
        Err(problem) => return problems.push(problem.at(at)),
    };
    let (mut more, wrong) = read_document(&source);
    problems.extend(wrong);
    if let Some(include) = more.remove("include") {
        let message = "an included file includes no others";
        problems.push(ConfigProblem::error("include", message).at(&include.name_at));
    }
    merge(table, more, &mut |name, old, new| match (name, &old.data, &new.data) {
        ("route", Data::List(_), Data::List(_)) => Clash::Append,
        // Each file may say which format it has.
        ("version", _, _) => Clash::Keep,
        _ => {
            let message = format!("`{name}` is set in two files");
            let problem = ConfigProblem::error("set-twice", message).at(&new.name_at);
            problems.push(problem.note(format!("it is set already: {}", old.name_at)));
            Clash::Keep
        }
    });
}

fn patterns(include: &Node) -> Vec<(String, Place)> {
    let Data::List(nodes) = &include.data else { return Vec::new() };
    let pattern = |node: &Node| {
        let Data::Text(text) = &node.data else { return None };
        Some((text.value.clone(), node.at.clone()))
    };
    nodes.iter().filter_map(pattern).collect()
}

/// The files that a pattern names, in the order of their names.
fn names(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = Path::new(pattern);
    let (inside, name) = (path.parent().unwrap_or(path), path.file_name());
    let name = name.and_then(|name| name.to_str()).ok_or("this is not the path of a file")?;
    let Some((before, after)) = name.split_once('*') else { return Ok(vec![path.to_owned()]) };
    if after.contains('*') || inside.to_string_lossy().contains('*') {
        return Err("one `*` may stand in the name of the file, and none before it".to_owned());
    }
    let listed = listable(&folder.join(inside));
    let cannot = |error: io::Error| format!("cannot list {}: {error}", listed.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(&listed).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let fits = name.len() >= before.len() + after.len()
            && name.starts_with(before)
            && name.ends_with(after);
        // Editors leave hidden files behind, half-written ones too.
        if fits && !name.starts_with('.') {
            found.push(inside.join(name));
        }
    }
    found.sort();
    Ok(found)
}

/// A folder as the system wants to be asked for it: a name without a folder is in the working one.
fn listable(folder: &Path) -> PathBuf {
    if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(write: impl Fn(&Path)) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        write(&path);
        read(&path).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        assert!(problem(|_| {}).contains("there is no file"));
        assert!(problem(|path| fs::create_dir(path).unwrap()).contains("is not a file"));
        let said = problem(|path| fs::write(path, b"version = 1\n# \xff\n").unwrap());
        assert!(said.contains("is not UTF-8: see line 2"), "{said}");
    }

    #[test]
    fn included_files_add_routes_and_settings() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("conf.d")).unwrap();
        write("a.toml", "version = 1\ninclude = ['conf.d/*.toml']\n[[route]]\nmatch = '/a'\n");
        write("conf.d/b.toml", "[[route]]\nmatch = '/b'\n");
        write("conf.d/c.toml", "version = 1\n[server]\nlisten = 'x'\n");
        write("conf.d/.d.toml", "half-");
        let (table, problems) = read(&folder.path().join("a.toml")).unwrap();
        assert_eq!(problems, []);
        assert!(matches!(&table["route"].data, Data::List(routes) if routes.len() == 2));
        write("conf.d/d.toml", "[server]\nlisten = 'y'\n");
        let (_, problems) = read(&folder.path().join("a.toml")).unwrap();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].message.contains("`listen` is set in two files"));
    }
}
