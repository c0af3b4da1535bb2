//! `oncekey store adopt`: lets a store that has lost something grant again.

use oncekey::core::Restore as _;
use oncekey::store::{open_existing, shown};

use crate::exit::{self, Exit};

pub(super) async fn run(url: &str, confirm: bool) -> Result<(), Exit> {
    let about = shown(url);
    let failed = |error| Exit::of_store(&about, &error);
    let store = open_existing(url).await.map_err(failed)?;
    if !confirm {
        let what = "keys that the store has lost are granted again, and their work runs a second time: \
                    say --confirm if you know what was lost and that nobody is at it any more";
        return Err(Exit::new(exit::REFUSED, what));
    }
    // The life that is accepted is the one that was told last.
    store.lineage().await.map_err(failed)?;
    store.adopt().await.map_err(failed)?;
    crate::print(&format!("{about}: adopted; gateways without a ring have to be started again\n"))
}
