//! A Python with the official SDK of Stripe, for the test that puts it in front of the gateway.
//!
//! It lives below `target/`, so that `cargo clean` removes it and nothing else on the machine
//! changes. It is made once; later runs need no network for it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::screen::Screen;
use crate::stop::Stop;
use crate::tools::{Tool, Tools};

/// Names a Python that has the SDK, for whoever brings one; `none` leaves the test out.
pub(crate) const VARIABLE: &str = "ONCEKEY_TEST_STRIPE_PYTHON";
/// The last one that runs on every Python of a supported distribution.
const VERSION: &str = "12.5.1";

/// Where the SDK comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sdk {
    /// We see to it.
    Ours,
    /// Somebody brings it.
    Theirs(String),
    /// Somebody does not want the test.
    LeftOut,
}

impl Sdk {
    /// What the environment says.
    pub(crate) fn wanted() -> Self {
        match env::var(VARIABLE).ok().filter(|value| !value.is_empty()) {
            None => Self::Ours,
            Some(value) if value == "none" => Self::LeftOut,
            Some(python) => Self::Theirs(python),
        }
    }

    /// The tools that it takes to make one.
    pub(crate) fn tools(&self) -> &'static [Tool] {
        match self {
            Self::Ours => &[Tool::Venv],
            Self::Theirs(_) | Self::LeftOut => &[],
        }
    }

    /// The Python, made if it is ours and not there yet. Nothing if the test is left out.
    pub(crate) fn prepare(
        &self,
        tools: &Tools,
        screen: Screen,
        stop: &Stop,
    ) -> Result<Option<String>> {
        match self {
            Self::Ours => {
                let folder = crate::root().join("target").join(format!("stripe-{VERSION}"));
                let python = make(&folder, tools, screen, stop).with_context(advice)?;
                Ok(Some(python.to_string_lossy().into_owned()))
            }
            Self::Theirs(python) => Ok(Some(python.clone())),
            Self::LeftOut => {
                screen
                    .say(&format!("{VARIABLE}=none: the test with the SDK of Stripe is left out"));
                Ok(None)
            }
        }
    }
}

fn make(folder: &Path, tools: &Tools, screen: Screen, stop: &Stop) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    if has_sdk(&python, stop) {
        return Ok(python);
    }
    let mut task = screen.begin(&format!("install the Python package stripe {VERSION} (once)"));
    // Something that was interrupted.
    let _ = std::fs::remove_dir_all(folder);
    let mut venv = Command::new(tools.path(Tool::Venv)?);
    venv.args(["-m", "venv"]).arg(folder);
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.arg(format!("stripe=={VERSION}"));
    for command in [venv, pip] {
        let line = process::line_of(&command);
        let finished = process::run(command, stop, |event| task.show(event))?;
        if !finished.status.success() {
            task.end("FAILED");
            bail!("`{line}` failed:\n{}", finished.output.trim_end());
        }
    }
    task.end("done");
    if !has_sdk(&python, stop) {
        bail!("the package is installed and cannot be imported");
    }
    Ok(python)
}

/// Whether this Python has the SDK, in the version that we want.
fn has_sdk(python: &Path, stop: &Stop) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", "import stripe; print(stripe.VERSION)"]);
    process::run(command, stop, |_| {})
        .is_ok_and(|said| said.status.success() && said.output.trim() == VERSION)
}

fn advice() -> String {
    format!(
        "one test needs the Python package stripe {VERSION}, which pip did not get. Make pip work \
         (network, or PIP_INDEX_URL for a mirror), or set {VARIABLE} to a Python that has the \
         package, or set {VARIABLE}=none to leave that test out"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_without_the_sdk_is_not_taken_for_one() {
        assert!(!has_sdk(Path::new("/bin/true"), &Stop::default()));
        assert!(!has_sdk(Path::new("/no/such/python"), &Stop::default()));
    }

    #[test]
    fn whoever_has_no_network_is_told_what_to_do() {
        assert!(advice().contains("ONCEKEY_TEST_STRIPE_PYTHON=none"), "{}", advice());
    }
}
