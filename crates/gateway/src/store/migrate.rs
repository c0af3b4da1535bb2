//! `oncekey store migrate`: brings tables up to date, or prints how.

use oncekey::store::{migration_sql, open, shown};

use crate::exit::Exit;

pub(super) async fn run(url: &str, print: bool) -> Result<(), Exit> {
    let about = shown(url);
    let failed = |error| Exit::of_store(&about, &error);
    if print {
        return crate::print(&migration_sql(url).map_err(failed)?);
    }
    // Every store brings its tables up to date when it is opened.
    drop(open(url).await.map_err(failed)?);
    crate::print(&format!("{about}: up to date\n"))
}
