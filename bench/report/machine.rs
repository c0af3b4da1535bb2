//! What the figures were measured on. Without it they mean nothing.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::Result;
use crate::clock::Stopwatch;
use crate::stats;

/// How many appends the cost of a sync is taken from: a p99 needs ten that are slower than it, and all of
/// them together take half a second.
const SYNCS: usize = 1_000;

/// Everything about the machine that the figures depend on.
#[derive(Debug)]
pub struct Machine {
    /// How many threads can run at the same time.
    pub cores: usize,
    lines: Vec<(&'static str, String)>,
    /// What it costs to have a small write on the disk, in microseconds.
    pub sync_micros: f64,
    /// What two of them, one after the other, take at most in 99 of 100 cases: whoever has to wait for the
    /// disk twice is not faster than this.
    pub two_syncs_p99_micros: f64,
}

impl Machine {
    /// Looks at the machine, and at the disk that holds `folder`.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn look(folder: &Path) -> Result<Self> {
        let cores = std::thread::available_parallelism()?.get();
        let (sync_micros, two_syncs_p99_micros) = sync_cost(folder)?;
        let file_system = file_system(folder);
        let lines = vec![
            ("oncekey", oncekey()),
            ("cpu", field_of("/proc/cpuinfo", "model name").unwrap_or_else(unknown)),
            ("cores", cores.to_string()),
            ("memory", field_of("/proc/meminfo", "MemTotal").unwrap_or_else(unknown)),
            ("load before", load()),
            ("folder", format!("{} ({file_system})", folder.display())),
            (
                "fdatasync",
                format!(
                    "{sync_micros:.0} us, median of {SYNCS} appends of 4 KiB; two in a row \
                     {two_syncs_p99_micros:.0} us at p99"
                ),
            ),
        ];
        let mut machine = Self { cores, lines, sync_micros, two_syncs_p99_micros };
        if is_in_memory(folder) {
            machine
                .add("WARNING", "this folder is in memory: a sync costs nothing there".to_owned());
        }
        if cfg!(debug_assertions) {
            machine.add("WARNING", "built without --release: the figures mean nothing".to_owned());
        }
        Ok(machine)
    }

    /// What else must be known to read the figures.
    pub fn add(&mut self, name: &'static str, text: String) {
        self.lines.push((name, text));
    }

    /// One line for each.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines.iter().map(|(name, text)| format!("{name:12} {text}\n")).collect()
    }

    /// The same for a program.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let lines = self.lines.iter().map(|(name, text)| ((*name).to_owned(), json!(text)));
        Value::Object(lines.collect())
    }
}

/// Where to put the files: the system's folder for temporary files, unless it is in memory. Then
/// the folder of this program, which is where Cargo builds.
pub fn default_folder() -> Result<PathBuf> {
    let temporary = std::env::temp_dir();
    if !is_in_memory(&temporary) {
        return Ok(temporary);
    }
    let program = std::env::current_exe()?;
    Ok(program.parent().map_or(temporary, Path::to_owned))
}

/// Whether a sync costs nothing there.
#[must_use]
pub fn is_in_memory(folder: &Path) -> bool {
    ["tmpfs", "ramfs"].contains(&file_system(folder).as_str())
}

/// How busy the machine is, as the system says.
#[must_use]
pub fn load() -> String {
    fs::read_to_string("/proc/loadavg").map_or_else(
        |_| unknown(),
        |text| text.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
    )
}

fn oncekey() -> String {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let revision = git
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(unknown, |text| text.trim().to_owned());
    format!("{}, revision {revision}", env!("CARGO_PKG_VERSION"))
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The value behind the first line that begins with `name`, in a file of `name : value` lines.
fn field_of(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// The kind of file system that holds `folder`, by the longest mount point above it.
fn file_system(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let above = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        folder.starts_with(point).then_some((point.len(), kind))
    });
    above.max_by_key(|(length, _)| *length).map_or_else(unknown, |(_, kind)| kind.to_owned())
}

/// The median of a sync, and the p99 of two in a row, in microseconds.
fn sync_cost(folder: &Path) -> Result<(f64, f64)> {
    let path = folder.join("sync");
    let mut file = File::create(&path)?;
    let mut spans = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        file.write_all(&[7; 4096])?;
        let watch = Stopwatch::start();
        file.sync_data()?;
        spans.push(stats::micros(watch.elapsed()));
    }
    fs::remove_file(&path)?;
    let mut pairs: Vec<f64> = spans.windows(2).map(|pair| pair.iter().sum()).collect();
    pairs.sort_unstable_by(f64::total_cmp);
    let p99 = pairs.get(pairs.len() * 99 / 100).copied().unwrap_or_default();
    Ok((stats::median(spans), p99))
}
