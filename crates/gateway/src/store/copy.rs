//! `oncekey store copy`: moves to another store.

use std::error::Error as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncekey::core::{Lineage, Restore as _};
use oncekey::store::copy::{Bookmark, Copied, Copier, CopyError, Pass, Verify};
use oncekey::store::{Opened, open, open_existing, shown};
use serde_json::json;

use super::bar::{Bar, grouped, per_second};
use crate::args::CopyArgs;
use crate::exit::{self, Exit};

pub(super) async fn run(args: CopyArgs) -> Result<(), Exit> {
    let (from, to) = open_both(&args).await?;
    let lineages = (lineage(&from, &args.from).await?, lineage(&to, &args.to).await?);
    if lineages.0 == lineages.1 {
        return Err(Exit::new(exit::USAGE, SAME));
    }
    let pass = if args.is_final { Pass::Final } else { Pass::Live };
    let place = args.resume.clone().map(|file| Place { file, lineages, pass });
    let bookmark = place.as_ref().map_or_else(|| Ok(Bookmark::default()), Place::read)?;
    let begun = bookmark.totals().seen;
    let mut bar = Bar::new(begun);
    let mut lost: Option<Exit> = None;
    let copier = Copier::new(Arc::new(from), Arc::new(to))
        .at_once(usize::from(args.at_once))
        .verify(if args.verify { Verify::All } else { Verify::Sample })
        .pass(pass)
        .resume(bookmark);
    let ended = copier
        .run(|progress| {
            bar.draw(progress.totals, progress.expected);
            if let (Some(place), Some(bookmark)) = (&place, progress.bookmark)
                && let Err(exit) = place.write(bookmark)
            {
                // The copy goes on: without its place it begins anew, and is right all the same.
                lost = Some(exit);
            }
        })
        .await;
    bar.clear();
    let copied = ended.map_err(|error| failed(&args, &error))?;
    if let Some(place) = &place {
        place.remove()?;
    }
    let took = bar.elapsed();
    let rate = per_second(copied.totals.seen - begun.min(copied.totals.seen), took);
    crate::print(&if args.json {
        as_json(&args, &copied, took.as_secs_f64())
    } else {
        as_text(&args, &copied, &format!("{:.1} s, {}/s", took.as_secs_f64(), grouped(rate)))
    })?;
    match (copied.totals.failed, lost) {
        (0, None) => Ok(()),
        (0, Some(exit)) => Err(exit),
        (_, _) => Err(Exit::silent(exit::FAILURE)),
    }
}

const SAME: &str = "--from and --to are the same store: give another --to. (A file that was made \
                    by copying another has its lineage, too: it needs no copy of its records)";

async fn open_both(args: &CopyArgs) -> Result<(Opened, Opened), Exit> {
    if args.from == args.to {
        return Err(Exit::new(exit::USAGE, SAME));
    }
    let opened = open_existing(&args.from).await;
    let from = opened.map_err(|error| about(&args.from, "--from", &error))?;
    let opened = open(&args.to).await;
    let to = opened.map_err(|error| about(&args.to, "--to", &error))?;
    for (store, option) in [(&from, "--from"), (&to, "--to")] {
        if store.label() == "memory" {
            let message = format!(
                "{option} is a store in memory, which begins empty and ends with this program: \
                 give one that lasts"
            );
            return Err(Exit::new(exit::USAGE, &message));
        }
    }
    Ok((from, to))
}

async fn lineage(store: &Opened, url: &str) -> Result<Lineage, Exit> {
    store.lineage().await.map_err(|error| Exit::of_store(&shown(url), &error))
}

fn about(url: &str, option: &str, error: &oncekey::core::StoreError) -> Exit {
    Exit::of_store(&format!("{option} {}", shown(url)), error)
}

fn failed(args: &CopyArgs, error: &CopyError) -> Exit {
    let (from, to) = (shown(&args.from), shown(&args.to));
    match error {
        CopyError::Source(cause) => Exit::of_store(&format!("reading {from}"), cause),
        CopyError::Target(cause) => Exit::of_store(&format!("writing {to}"), cause),
        CopyError::InUse { .. } | CopyError::Changed => {
            Exit::new(exit::REFUSED, &format!("{from}: {error}"))
        }
        CopyError::Fewer { .. } | _ => {
            Exit::chain(exit::FAILURE, &error.to_string(), error.source())
        }
    }
}

fn as_text(args: &CopyArgs, copied: &Copied, took: &str) -> String {
    let Copied { totals, target, left, lapsed, strangers, failed, .. } = copied;
    let mut text = format!(
        "{} → {}\n  {} records: {} written, {} kept, {} gone, {} failed ({took})\n  {} compared; \
         the target now holds {}\n",
        shown(&args.from),
        shown(&args.to),
        grouped(totals.seen),
        grouped(totals.written),
        grouped(totals.kept),
        grouped(totals.gone),
        grouped(totals.failed),
        grouped(totals.verified),
        number(*target),
    );
    if *lapsed > 0 {
        text.push_str(&format!(
            "  {} were running and their owners are gone: whoever claims them next decides\n",
            number(*lapsed)
        ));
    }
    if *strangers > 0 {
        text.push_str(&format!(
            "  {} unfinished records of the target are not in the source: their keys stay \
             blocked until somebody resolves them\n",
            number(*strangers)
        ));
    }
    if !args.is_final {
        text.push_str(&format!(
            "  {} have not ended and were left. Next: stop whoever uses the store, and copy with \
             --final\n",
            number(*left)
        ));
    }
    for failure in failed {
        text.push_str(&format!("  ✖ {}: {}\n", hex(failure.id.as_bytes()), failure.why));
    }
    text
}

fn number(count: usize) -> String {
    grouped(u64::try_from(count).unwrap_or(u64::MAX))
}

fn as_json(args: &CopyArgs, copied: &Copied, seconds: f64) -> String {
    let failures = copied
        .failed
        .iter()
        .map(|failure| json!({ "key_id": hex(failure.id.as_bytes()), "why": failure.why }));
    let totals = &copied.totals;
    let document = json!({
        "from": shown(&args.from),
        "to": shown(&args.to),
        "final": args.is_final,
        "expected": copied.expected,
        "seen": totals.seen,
        "written": totals.written,
        "kept": totals.kept,
        "gone": totals.gone,
        "verified": totals.verified,
        "failed": totals.failed,
        "target": copied.target,
        "left": copied.left,
        "lapsed": copied.lapsed,
        "strangers": copied.strangers,
        "seconds": seconds,
        "failures": failures.collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file that holds the place of an unfinished copy.
#[derive(Debug)]
struct Place {
    file: PathBuf,
    lineages: (Lineage, Lineage),
    pass: Pass,
}

impl Place {
    /// Where an earlier run ended, or the beginning.
    fn read(&self) -> Result<Bookmark, Exit> {
        let text = match fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Bookmark::default()),
            Err(error) => return Err(self.wrong("cannot be read", &error)),
        };
        let (from, to) = &self.lineages;
        let read = Bookmark::from_json(&text, from.as_str(), to.as_str(), self.pass);
        read.map_err(|error| {
            let file = self.file.display();
            let message =
                format!("--resume {file}: {error}; remove the file to begin at the beginning");
            Exit::new(exit::USAGE, &message)
        })
    }

    /// Puts a new file in the place of the old one, so that there is always a whole one.
    fn write(&self, bookmark: &Bookmark) -> Result<(), Exit> {
        let (from, to) = &self.lineages;
        let text = bookmark.to_json(from.as_str(), to.as_str());
        let beside = beside(&self.file);
        let put = || {
            let mut file = File::create(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            fs::rename(&beside, &self.file)
        };
        put().map_err(|error| self.wrong("cannot be written", &error))
    }

    fn remove(&self) -> Result<(), Exit> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.wrong("cannot be removed; the copy is complete", &error))
            }
            _ => Ok(()),
        }
    }

    fn wrong(&self, what: &str, error: &io::Error) -> Exit {
        let message = format!("--resume {}: {what}", self.file.display());
        Exit::chain(exit::FAILURE, &message, Some(error))
    }
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    name.into()
}
