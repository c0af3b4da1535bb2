//! The store and the engine, as the configuration wants them.

use std::path::Path;
use std::sync::Arc;

use oncekey::core::Pepper;
use oncekey::engine::{Engine, KeyRing};
use oncekey::store::{self, Opened};

use crate::config::{StoreSection, read_secret};
use crate::exit::{self, Exit};
use crate::probe::Probes;

/// Where records are kept, and who works with them.
#[derive(Clone)]
pub(crate) struct Keeping {
    pub(crate) store: Opened,
    pub(crate) engine: Engine,
    /// Who is asked about lost answers; a plan says whom.
    pub(crate) probes: Arc<Probes>,
    /// The secret behind fingerprints, too.
    pub(crate) pepper: Option<Pepper>,
    pub(crate) secrecy: Secrecy,
}

/// Who can read what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// Nobody outside of this program: it is encrypted, or never leaves the memory.
    Secret,
    /// Whoever gets hold of the store.
    Plain,
}

impl Keeping {
    /// Opens the store, which is made if it is not there, and starts an engine on it.
    pub(crate) async fn open(section: &StoreSection) -> Result<Self, Exit> {
        let pepper = pepper(section)?;
        let ring = key_ring(section)?;
        let store = store::open(section.url.expose()).await;
        let store = store.map_err(|error| Exit::of_store("cannot open the store", &error))?;
        let secrecy = match (&ring, store.label()) {
            (Some(_), _) | (None, "memory") => Secrecy::Secret,
            (None, _) => Secrecy::Plain,
        };
        let probes = Arc::<Probes>::default();
        let mut builder = Engine::builder(Arc::new(store.clone()))
            .probe(Arc::<Probes>::clone(&probes))
            .store_label(store.label())
            .namespace(&section.namespace)
            .cache(section.cache);
        if let Some(pepper) = &pepper {
            builder = builder.pepper(pepper.clone());
        }
        if let Some(ring) = ring {
            builder = builder.encryption(ring);
        }
        if let Some(wake) = store.wake() {
            builder = builder.wake(wake);
        }
        if let Some(folder) = &section.journal {
            builder = builder.journal(folder);
        }
        if let Some(folder) = &section.ring {
            builder = builder.ring(folder, Arc::new(store.clone()));
        }
        let engine = builder.build().map_err(|error| {
            Exit::chain(exit::FAILURE, "the engine does not start", Some(&error))
        })?;
        Ok(Self { store, engine, probes, pepper, secrecy })
    }
}

/// Refuses what [`Keeping::open`] would refuse, as far as that can be known without opening anything.
pub(crate) fn check(section: &StoreSection) -> Result<(), Exit> {
    pepper(section)?;
    key_ring(section)?;
    check_url(section)
}

/// Refuses the URL of a store that this program cannot open.
pub(crate) fn check_url(section: &StoreSection) -> Result<(), Exit> {
    // Whoever writes the statements has read the whole URL, and opens nothing.
    let read = store::migration_sql(section.url.expose()).map(drop);
    read.map_err(|error| Exit::of_store("cannot open the store", &error))
}

/// The secret behind key ids, if there is one.
pub(crate) fn pepper(section: &StoreSection) -> Result<Option<Pepper>, Exit> {
    let Some(path) = &section.pepper_file else { return Ok(None) };
    let pepper = Pepper::new(secret(path)?).map_err(|error| {
        Exit::chain(exit::INVALID, &format!("{} is no pepper", path.display()), Some(&error))
    });
    pepper.map(Some)
}

/// All keys of all files; the first of the first encrypts.
pub(crate) fn key_ring(section: &StoreSection) -> Result<Option<KeyRing>, Exit> {
    let mut text = String::new();
    for path in &section.encrypt_with_files {
        let Ok(lines) = String::from_utf8(secret(path)?) else {
            let what = format!("{} is no text: it holds lines `id:key`", path.display());
            return Err(Exit::new(exit::INVALID, &what));
        };
        text.push_str(&lines);
        text.push('\n');
    }
    if text.is_empty() {
        return Ok(None);
    }
    let ring = KeyRing::parse(&text).map_err(|error| {
        Exit::chain(exit::INVALID, "store.encrypt_with_files holds no keys", Some(&error))
    })?;
    Ok(Some(ring))
}

fn secret(path: &Path) -> Result<Vec<u8>, Exit> {
    read_secret(path).map_err(|why| Exit::new(exit::INVALID, &why))
}
