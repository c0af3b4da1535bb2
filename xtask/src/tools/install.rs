//! Installs what is missing: packages by apt, crates by Cargo, components by rustup.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::{Source, Tool, advice};
use crate::process;
use crate::programs;
use crate::screen::Screen;
use crate::stop::Stop;

/// Debian asks this program before it starts a service of a new package.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs all of `missing`.
pub(crate) fn all(missing: &[Tool], cache: &Path, screen: Screen, stop: &Stop) -> Result<()> {
    let mut packages = Vec::new();
    let mut crates = Vec::new();
    let mut components = Vec::new();
    for tool in missing {
        match tool.source() {
            Source::Package(name) => packages.push(name),
            Source::Crate(name, version, arguments) => crates.push((name, version, arguments)),
            Source::Component(name) => components.push(name),
        }
    }
    if !packages.is_empty() {
        let root = Root::find().with_context(|| {
            let problem = "cannot install packages: that takes apt-get, and root or passwordless \
                           sudo. Please install these yourself:";
            format!("{problem}{}", advice(&only_packages(missing)))
        })?;
        install_packages(&packages, root, screen, stop)?;
    }
    if !components.is_empty() {
        install_components(&components, missing, screen, stop)?;
    }
    for (name, version, arguments) in crates {
        install_crate(name, version, arguments, cache, screen, stop)?;
    }
    Ok(())
}

fn only_packages(tools: &[Tool]) -> Vec<Tool> {
    let is_package = |tool: &Tool| matches!(tool.source(), Source::Package(_));
    tools.iter().copied().filter(is_package).collect()
}

/// How this process gets root's rights.
#[derive(Clone, Copy, Debug)]
enum Root {
    Already,
    Sudo,
}

impl Root {
    fn find() -> Option<Self> {
        programs::find("apt-get")?;
        if programs::is_root() {
            return Some(Self::Already);
        }
        let mut sudo = Command::new(programs::find("sudo")?);
        sudo.args(["-n", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        sudo.status().ok().filter(|status| status.success()).map(|_| Self::Sudo)
    }

    fn command(self, program: &str, arguments: &[&str]) -> Command {
        // `env` passes the setting on through sudo, which drops the environment.
        let quiet = ["DEBIAN_FRONTEND=noninteractive", program];
        let mut command = match self {
            Self::Already => Command::new("env"),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.args(["-n", "env"]);
                command
            }
        };
        command.args(quiet).args(arguments);
        command
    }
}

fn install_packages(packages: &[&str], root: Root, screen: Screen, stop: &Stop) -> Result<()> {
    stop.check()?;
    let _quiet = NoServices::declare(root)?;
    let mut task = screen.begin(&format!("install {}", packages.join(", ")));
    // Interrupting dpkg leaves a broken system behind, so Ctrl-C waits for it.
    let never = Stop::default();
    let update = process::run(root.command("apt-get", &["update"]), &never, |e| task.show(e))?;
    let mut arguments =
        vec!["install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"];
    arguments.extend(packages);
    let command = root.command("apt-get", &arguments);
    let install = process::run(command, &never, |event| task.show(event))?;
    if !install.status.success() {
        task.end("FAILED");
        // Often the reason is in the first output: no network, or no package lists.
        bail!("apt-get failed:\n{}{}", update.output, install.output.trim_end());
    }
    task.end("done");
    stop.check()
}

fn install_components(
    components: &[&str],
    missing: &[Tool],
    screen: Screen,
    stop: &Stop,
) -> Result<()> {
    let rustup = programs::find("rustup")
        .with_context(|| format!("there is no rustup. Please install:{}", advice(missing)))?;
    let mut command = Command::new(rustup);
    command.args(["component", "add"]).args(components).current_dir(crate::root());
    let task = screen.begin(&format!("install {}", components.join(", ")));
    process::output(command, stop)?;
    task.end("done");
    Ok(())
}

fn install_crate(
    name: &str,
    version: &str,
    arguments: &[&str],
    cache: &Path,
    screen: Screen,
    stop: &Stop,
) -> Result<()> {
    let mut command = programs::cargo();
    command.args(["install", name, "--version", version, "--locked"]).args(arguments);
    // These run for seconds: an optimised build would cost minutes and give nothing back.
    command.arg("--debug").arg("--force").arg("--root").arg(cache);
    // An interrupted build goes on where it was.
    let build = cache.join("build");
    command.arg("--target-dir").arg(&build).current_dir(cache);
    let mut task = screen.begin(&format!("build {name} {version} (once)"));
    let finished = process::run(command, stop, |event| task.show(event))?;
    if !finished.status.success() {
        task.end("FAILED");
        bail!("cargo install {name} failed:\n{}", finished.output.trim_end());
    }
    task.end("done");
    // Hundreds of megabytes that nobody needs again. A leftover does no harm.
    let _ = std::fs::remove_dir_all(build);
    Ok(())
}

/// Keeps Debian from starting the services of new packages, as long as this value lives.
#[derive(Debug)]
struct NoServices {
    /// Set if the policy is ours and has to go again.
    ours: Option<Root>,
}

impl NoServices {
    fn declare(root: Root) -> Result<Self> {
        if Path::new(POLICY).exists() {
            return Ok(Self { ours: None });
        }
        let mut script = tempfile::NamedTempFile::new().context("cannot create a file")?;
        script.write_all(b"#!/bin/sh\nexit 101\n").context("cannot write a file")?;
        let source = script.path().to_string_lossy().into_owned();
        let command = root.command("install", &["-m", "755", &source, POLICY]);
        process::output(command, &Stop::default())?;
        Ok(Self { ours: Some(root) })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        let Some(root) = self.ours else { return };
        if let Err(error) = process::output(root.command("rm", &["-f", POLICY]), &Stop::default()) {
            eprintln!("please remove {POLICY}, which keeps services from starting: {error:#}");
        }
    }
}
