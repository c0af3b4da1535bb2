//! The scripts, one per verb. A server keeps them by their digest; one that does not know a script
//! yet, or any more, is given its text.

use std::sync::{Arc, LazyLock};

use redis::Cmd;

/// Asks to own a key.
pub(super) static CLAIM: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/claim.lua")));
/// Extends leases of one shard.
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/renew.lua")));
/// Marks the point of no return.
pub(super) static SEND: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/send.lua")));
/// Records an answer.
pub(super) static COMPLETE: LazyLock<Script> =
    LazyLock::new(|| script(include_str!("lua/complete.lua")));
/// Writes a piece of a large answer before its completion.
pub(super) static PIECE: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/piece.lua")));
/// Gives a key back.
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| script(include_str!("lua/release.lua")));
/// Records that nobody knows.
pub(super) static UNKNOWN: LazyLock<Script> =
    LazyLock::new(|| script(include_str!("lua/unknown.lua")));
/// Reads a record with its answer.
pub(super) static GET: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/get.lua")));
/// Lists what is due in a shard.
pub(super) static DUE: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/due.lua")));
/// Strips or removes what is due.
pub(super) static PURGE: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/purge.lua")));
/// Blanks what is personal in a record.
pub(super) static ERASE: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/erase.lua")));
/// Lists the key ids of a shard.
pub(super) static PAGE: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/page.lua")));
/// Writes a record that was made elsewhere.
pub(super) static RESTORE: LazyLock<Script> =
    LazyLock::new(|| script(include_str!("lua/restore.lua")));
/// Gives a shard to a life of the store.
pub(super) static SHARD: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/shard.lua")));
/// Begins a life of the store.
pub(super) static ROOT: LazyLock<Script> = LazyLock::new(|| script(include_str!("lua/root.lua")));

/// A script with the digest by which servers know it.
#[derive(Debug)]
pub(super) struct Script {
    text: String,
    digest: String,
}

/// A call of a script under way to its server. Keys come first, then arguments.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) script: &'static LazyLock<Script>,
    pub(super) command: Cmd,
    /// The life that it was made for, if it belongs to one.
    pub(super) epoch: Option<Arc<str>>,
}

impl Call {
    /// Calls `script` on these keys.
    pub(super) fn new<K: redis::ToRedisArgs>(
        script: &'static LazyLock<Script>,
        keys: impl IntoIterator<Item = K, IntoIter: ExactSizeIterator>,
    ) -> Self {
        let keys = keys.into_iter();
        let mut command = Cmd::with_capacity(keys.len() + 16, 1_024);
        command.arg("EVALSHA").arg(script.digest.as_str()).arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        Self { script, command, epoch: None }
    }

    /// Adds the life that it is made for, as the next argument.
    pub(super) fn in_life(mut self, epoch: Arc<str>) -> Self {
        self.command.arg(&*epoch);
        self.epoch = Some(epoch);
        self
    }

    /// Adds an argument.
    pub(super) fn arg(mut self, arg: impl redis::ToRedisArgs) -> Self {
        self.command.arg(arg);
        self
    }

    /// Whether it may grant a key.
    pub(super) fn is_grant(&self) -> bool {
        std::ptr::eq(self.script, &CLAIM)
    }

    /// Whether it extends leases.
    pub(super) fn is_renewal(&self) -> bool {
        std::ptr::eq(self.script, &RENEW)
    }

    /// Makes the server know the script.
    pub(super) fn load(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("SCRIPT").arg("LOAD").arg(self.script.text.as_str());
        command
    }
}

fn script(text: &str) -> Script {
    let text = [include_str!("lua/prelude.lua"), text].concat();
    let digest = redis::Script::new(&text).get_hash().to_owned();
    Script { text, digest }
}
