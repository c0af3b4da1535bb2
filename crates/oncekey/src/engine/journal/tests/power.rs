//! Power cuts: what was not synced may be gone, in the file as well as in the folder. F31, I32, I34.
//!
//! A disk that remembers what was synced. The power is cut after every single step of a history,
//! and the disk then comes back with as little, as much or as strange a part of the rest as it
//! likes. Everything that was acknowledged must be there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Mutex;

use super::*;

/// A disk with a switch.
#[derive(Clone)]
struct Mortal(Arc<Mutex<Memory>>);

struct Memory {
    /// How many steps are left before the power goes.
    left: usize,
    /// Files by their number, with what is known to be on the disk and what should be.
    files: BTreeMap<u64, Content>,
    names: BTreeMap<PathBuf, u64>,
    synced_names: BTreeMap<PathBuf, u64>,
}

#[derive(Default)]
struct Content {
    synced: Vec<u8>,
    current: Vec<u8>,
}

/// What survives of that which was not synced.
#[derive(Clone, Copy, Debug)]
enum Survives {
    Nothing,
    Everything,
    /// The names, but of the content only the half that was written last: the rest is zeros.
    NamesAndHalves,
    /// Not the names, but the content.
    Content,
}

impl Mortal {
    fn new(steps: usize) -> Self {
        let (files, names) = (BTreeMap::new(), BTreeMap::new());
        let memory = Memory { left: steps, files, names: names.clone(), synced_names: names };
        Self(Arc::new(Mutex::new(memory)))
    }

    fn step<T>(&self, real: impl FnOnce(&mut Memory) -> io::Result<T>) -> io::Result<T> {
        let mut memory = self.0.lock().unwrap();
        if memory.left == 0 {
            return Err(io::Error::other("the power is off"));
        }
        memory.left -= 1;
        real(&mut memory)
    }

    fn is_dead(&self) -> bool {
        self.0.lock().unwrap().left == 0
    }

    /// A folder as it is found after the power came back.
    fn restored(&self, survives: Survives) -> TempDir {
        let memory = self.0.lock().unwrap();
        let folder = folder();
        let names = match survives {
            Survives::Nothing | Survives::Content => &memory.synced_names,
            Survives::Everything | Survives::NamesAndHalves => &memory.names,
        };
        for (name, file) in names {
            let Content { synced, current } = &memory.files[file];
            let content = match survives {
                Survives::Nothing => synced.clone(),
                Survives::Everything | Survives::Content => current.clone(),
                Survives::NamesAndHalves => {
                    let mut half = synced.clone();
                    half.resize(current.len().max(synced.len()), 0);
                    let from = (synced.len() + half.len()) / 2;
                    if current.len() == half.len() {
                        half[from..].copy_from_slice(&current[from..]);
                    }
                    half
                }
            };
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        folder
    }
}

fn name(path: &Path) -> PathBuf {
    path.file_name().unwrap().into()
}

fn number(file: &File) -> u64 {
    file.metadata().unwrap().ino()
}

impl Disk for Mortal {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        self.step(|memory| {
            let file = RealDisk.create(path)?;
            let number = number(&file);
            let is_new = memory.names.insert(name(path), number) != Some(number);
            let content = memory.files.entry(number).or_default();
            content.current.clear();
            if is_new {
                // Numbers are used again once a file is gone.
                content.synced.clear();
            }
            Ok(file)
        })
    }

    fn write(&mut self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.step(|memory| {
            RealDisk.write(file, at, bytes)?;
            let current = &mut memory.files.get_mut(&number(file)).unwrap().current;
            let at = usize::try_from(at).unwrap();
            current.resize(current.len().max(at + bytes.len()), 0);
            current[at..at + bytes.len()].copy_from_slice(bytes);
            Ok(())
        })
    }

    fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        self.step(|memory| {
            RealDisk.cut(file, length)?;
            let current = &mut memory.files.get_mut(&number(file)).unwrap().current;
            current.truncate(usize::try_from(length).unwrap());
            Ok(())
        })
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        self.step(|memory| {
            let content = memory.files.get_mut(&number(file)).unwrap();
            content.synced.clone_from(&content.current);
            Ok(())
        })
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|memory| {
            RealDisk.rename(from, to)?;
            let file = memory.names.remove(&name(from)).unwrap();
            memory.names.insert(name(to), file);
            Ok(())
        })
    }

    fn sync_folder(&mut self, _folder: &Path) -> io::Result<()> {
        self.step(|memory| {
            memory.synced_names = memory.names.clone();
            Ok(())
        })
    }
}

/// What a history was told.
#[derive(Debug, Default)]
struct Told {
    acknowledged: BTreeSet<u64>,
    asked: BTreeSet<u64>,
    /// Asked to be drained, so they may or may not come back.
    drained: BTreeSet<u64>,
}

/// Appends, drains, tidies and opens again, until it is done or the power is off.
async fn live(folder: &Path, disk: &Mortal, told: &mut Told, first: u64) {
    for life in 0..3 {
        let settings = Settings { limit: LIMIT, tidy_after: Duration::ZERO };
        let opened = Journal::open_with(folder, settings, disk.clone(), entropy());
        let (journal, found) = match opened {
            Ok(opened) => opened,
            Err(error) => return assert!(disk.is_dead(), "{error}"),
        };
        for (mark, entry) in found {
            let number = number_of(&entry);
            if number % 3 == life % 3 {
                told.drained.insert(number);
                journal.drained(mark).await.unwrap();
            }
        }
        for number in (first + life * 10)..(first + life * 10 + 5) {
            told.asked.insert(number);
            if journal.append(&entry(number)).await.is_ok() {
                told.acknowledged.insert(number);
            }
        }
    }
}

fn compare(found: &[Entry], told: &Told, context: &str) {
    let numbers: BTreeSet<u64> = found.iter().map(number_of).collect();
    for entry in found {
        assert_eq!(*entry, super::entry(number_of(entry)), "{context}");
    }
    let lost: Vec<_> = told.acknowledged.difference(&told.drained).collect();
    assert!(lost.iter().all(|number| numbers.contains(number)), "{context}: {numbers:?}, {told:?}");
    assert!(numbers.is_subset(&told.asked), "{context}: {numbers:?}, {told:?}");
}

/// F31, I32.
#[tokio::test]
async fn a_power_cut_after_any_step_takes_back_nothing_that_was_acknowledged() {
    let mut cuts = 0;
    for steps in 0.. {
        let (folder, disk) = (folder(), Mortal::new(steps));
        let mut told = Told::default();
        live(folder.path(), &disk, &mut told, 0).await;
        for survives in
            [Survives::Nothing, Survives::Everything, Survives::NamesAndHalves, Survives::Content]
        {
            let restored = disk.restored(survives);
            let found = waiting(restored.path());
            compare(&found, &told, &format!("cut after {steps} steps, {survives:?} survives"));
        }
        cuts += 1;
        if !disk.is_dead() {
            break;
        }
    }
    assert!(cuts > 40, "the history is too short: {cuts}");
}

/// I34: the power goes again while the journal recovers, at every step of the recovery, and again.
#[tokio::test]
async fn power_cuts_during_recovery_converge() {
    let (folder, disk) = (folder(), Mortal::new(60));
    let mut told = Told::default();
    live(folder.path(), &disk, &mut told, 0).await;
    for first in [Survives::Nothing, Survives::NamesAndHalves] {
        for steps in 0..12 {
            let mut image = disk.restored(first);
            for _ in 0..3 {
                // What the last cut left is on the disk now.
                let again = Mortal::new(steps);
                again.adopt(image.path());
                let settings = Settings { limit: LIMIT, tidy_after: NEVER };
                drop(Journal::open_with(image.path(), settings, again.clone(), entropy()));
                image = again.restored(Survives::NamesAndHalves);
            }
            compare(&waiting(image.path()), &told, &format!("{first:?}, cut after {steps}"));
        }
    }
}

impl Mortal {
    /// Takes what is in a folder for synced.
    fn adopt(&self, folder: &Path) {
        let mut memory = self.0.lock().unwrap();
        for path in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
            let number = std::fs::metadata(&path).unwrap().ino();
            let bytes = std::fs::read(&path).unwrap();
            memory.files.insert(number, Content { synced: bytes.clone(), current: bytes });
            memory.names.insert(name(&path), number);
        }
        memory.synced_names = memory.names.clone();
    }
}
