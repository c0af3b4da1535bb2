//! oncekey beside sqlx: two libraries that both bring SQLite, in one program.
//!
//! Only one crate of a program may link SQLite. oncekey accepts a range of versions, so Cargo
//! finds one that suits both, and the store checks at run time that it is new enough.
//!
//! Run it with `cargo run --manifest-path examples/Cargo.toml -p beside-sqlx`. It makes two
//! databases in a temporary folder, one for each library, and prints what each holds.

use std::error::Error;
use std::time::Duration;

use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, Fingerprint, FingerprintRules, Headers, Key, KeyId,
    Origin, Owner, Saved, Scope, Sent, Store, Subject,
};
use oncekey::store::sqlite::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("oncekey-beside-sqlx-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;

    // The service's own data, through sqlx.
    let file = SqliteConnectOptions::new().filename(folder.join("app.db")).create_if_missing(true);
    let pool = SqlitePool::connect_with(file).await?;
    sqlx::query("CREATE TABLE payments (amount INTEGER NOT NULL)").execute(&pool).await?;

    // The same payment is asked for three times; the service does it once.
    let store = SqliteStore::open(folder.join("oncekey.db"))?;
    for attempt in 1..=3 {
        match store.claim(&claim("order-42", 500, attempt)?).await? {
            Claimed::Won { lease, .. } => {
                sqlx::query("INSERT INTO payments (amount) VALUES (500)").execute(&pool).await?;
                let saved = Saved { status: 201, headers: Headers::new(), body: "paid".into() };
                let completion = Completion {
                    answer: Answer::Kept(saved),
                    retention: Duration::from_secs(24 * 60 * 60),
                    linger: Duration::ZERO,
                };
                let write = store.complete(&lease, &completion).await?;
                println!("attempt {attempt}: paid ({write:?})");
            }
            Claimed::Lost { refusal, .. } => println!("attempt {attempt}: {refusal:?}"),
        }
    }
    let payments: i64 =
        sqlx::query_scalar("SELECT count(*) FROM payments").fetch_one(&pool).await?;
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&pool).await?;
    println!("{payments} payment, SQLite {version}");

    drop(store);
    pool.close().await;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

fn claim(key: &str, amount: u32, attempt: u8) -> Result<Claim, Box<dyn Error>> {
    let body = format!("{{\"amount\":{amount}}}");
    let subject = Subject {
        method: "POST",
        path: b"/payments",
        query: None,
        content_type: Some(b"application/json"),
        headers: &[],
        body: body.as_bytes(),
    };
    let (fingerprint, places) = Fingerprint::v1(&subject, &FingerprintRules::default());
    let key = Key::new(key.as_bytes())?;
    Ok(Claim {
        id: KeyId::derive("example", &Scope::shared(), &key, None),
        // A real service draws these bits at random, anew for every attempt.
        owner: Owner::from_bytes([attempt; 16]),
        fingerprint,
        class: Class::Once,
        lease: Duration::from_secs(30),
        grace: Duration::from_secs(2),
        sent: Sent::No,
        origin: Origin { key: key.as_bytes().into(), ..Origin::default() },
        places,
    })
}
