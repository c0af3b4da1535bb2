//! Files with secrets.

use std::fs;
use std::path::Path;

use super::flat::Flat;
use super::kind::{Kind, Secrecy};
use super::problem::ConfigProblem;
use super::settings::find;
use super::source::Place;

/// Reads a secret, without the line break at its end.
///
/// # Errors
/// If the file cannot be read, is empty, or others can read it.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    if let Some(message) = exposed(path) {
        return Err(message);
    }
    let mut bytes = fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    while bytes.last().is_some_and(|byte| b"\r\n".contains(byte)) {
        bytes.pop();
    }
    if bytes.is_empty() { Err(format!("{shown} is empty")) } else { Ok(bytes) }
}

/// Looks at every file with a secret that is there. One that is not is a warning: a configuration
/// is often checked where its secrets are not.
pub(super) fn check_files(flat: &Flat, folder: &Path) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    for (path, _) in flat.leaves() {
        let Some(place) = flat.place(path) else { continue };
        for name in secret_files(flat, path) {
            let file = folder.join(name);
            problems.extend(look(&file, name, place).map(|problem| problem.about(path)));
        }
    }
    problems
}

fn secret_files<'f>(flat: &'f Flat, path: &str) -> Vec<&'f str> {
    match find(path).map(|setting| &setting.kind) {
        Some(Kind::File(Secrecy::Secret)) => flat.text(path).into_iter().collect(),
        Some(Kind::List(Kind::File(Secrecy::Secret))) => flat.texts(path),
        // A public key may be read by everybody, a shared secret may not.
        Some(_) if is_jwt_key(path) && flat.text("jwt.algorithm") == Some("HS256") => {
            flat.text(path).into_iter().collect()
        }
        Some(_) | None => Vec::new(),
    }
}

fn is_jwt_key(path: &str) -> bool {
    matches!(path, "jwt.key_file" | "jwt.jwks_file")
}

fn look(file: &Path, name: &str, place: &Place) -> Option<ConfigProblem> {
    if !file.exists() {
        let message = format!("there is no file {name} here");
        return Some(ConfigProblem::warning("no-secret", message).at(place));
    }
    exposed(file).map(|_| {
        let message = format!("everybody on this machine can read {name}");
        let problem = ConfigProblem::error("secret-exposed", message).at(place);
        problem.note(format!("run: chmod o= {name}"))
    })
}

/// Why a file is no place for a secret.
#[cfg(unix)]
fn exposed(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;

    let mode = fs::metadata(path).ok()?.permissions().mode();
    // The group may read it: that is how services share secrets.
    (mode & 0o007 != 0).then(|| {
        let shown = path.display();
        format!("everybody on this machine can read {shown}: run chmod o= {shown}")
    })
}

#[cfg(not(unix))]
fn exposed(_: &Path) -> Option<String> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::{Config, Env};
    use super::*;

    #[test]
    fn a_secret_that_others_can_read_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "hunter2\n").unwrap();
        let with = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        with(0o600);
        assert_eq!(read_secret(&path).as_deref(), Ok(&b"hunter2"[..]));
        with(0o440);
        assert!(read_secret(&path).is_ok());
        with(0o644);
        assert!(read_secret(&path).unwrap_err().contains("chmod"));
        with(0o600);
        fs::write(&path, "\n").unwrap();
        assert!(read_secret(&path).unwrap_err().contains("is empty"));
        assert!(read_secret(&folder.path().join("no")).unwrap_err().contains("cannot read"));
    }

    /// A set of public keys is for everybody, a set of shared secrets is not.
    #[test]
    fn a_set_of_shared_secrets_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set.json");
        fs::write(&path, "{}").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let load = |algorithm: &str| {
            let text = format!(
                "version = 1\n[server]\nupstream = ':3000'\n[jwt]\nalgorithm = '{algorithm}'\n\
                 jwks_file = '{}'\n[[route]]\nmatch = '/a'\n",
                path.display()
            );
            Config::from_text("a.toml", &text, &Env::default())
        };
        assert!(load("RS256").is_ok());
        assert_eq!(load("HS256").unwrap_err()[0].code, "secret-exposed");
    }
}
