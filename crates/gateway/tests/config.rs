//! Configurations as people write them, good and bad, and what the program says about each.
//!
//! Every file of `tests/config` has a text beside it with what is printed, compared byte by byte.
//! `ONCEKEY_BLESS=1 cargo test -p oncekey-gateway --test config` writes the texts; read them then.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(name)
}

/// The configurations of a folder.
fn files(name: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder(name)).expect("the folder");
    let paths = listed.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    files.sort();
    files
}

/// Runs the program beside a file, with the variables that the file asks for in comments.
fn oncekey(file: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let text = fs::read(file).unwrap_or_default();
    for line in String::from_utf8_lossy(&text).lines() {
        let variable = line.strip_prefix("# env: ").and_then(|line| line.split_once('='));
        if let Some((name, value)) = variable {
            command.env(name, value);
        }
    }
    let name = file.file_name().expect("a name");
    command.current_dir(file.parent().expect("a folder")).args(arguments).arg("-c").arg(name);
    command.output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the program prints UTF-8")
}

/// Compares what was printed with the text that belongs to it.
fn compare(printed: &str, expected: &Path) {
    if std::env::var_os("ONCEKEY_BLESS").is_some() {
        fs::write(expected, printed).expect("the text is written");
    }
    let known = fs::read_to_string(expected).unwrap_or_default();
    assert_eq!(printed, known, "{}", expected.display());
}

#[test]
fn everything_that_is_wrong_is_said_in_full() {
    let files = files("bad");
    assert!(files.len() >= 50, "{} files", files.len());
    for file in files {
        let Output { status, stdout, stderr } = oncekey(&file, &["validate"]);
        let printed = text(&stderr);
        assert_eq!(status.code(), Some(3), "{}: {printed}", file.display());
        assert!(stdout.is_empty(), "{}", file.display());
        assert!(printed.starts_with("error["), "{}: {printed}", file.display());
        assert!(!printed.contains('\u{1b}'), "{} commands the terminal", file.display());
        compare(&printed, &file.with_extension("txt"));
    }
}

#[test]
fn what_is_right_is_accepted() {
    for file in files("good") {
        let Output { status, stdout, stderr } = oncekey(&file, &["validate"]);
        let printed = text(&stdout) + &text(&stderr);
        if asks_for_more(&file) {
            // It is right in every other respect.
            assert!(printed.contains("built with"), "{}: {printed}", file.display());
            assert!(printed.ends_with("\n1 error\n"), "{}: {printed}", file.display());
            continue;
        }
        assert!(status.success(), "{}: {printed}", file.display());
        compare(&printed, &file.with_extension("txt"));
    }
}

/// Whether a file wants what this program was built without.
fn asks_for_more(file: &Path) -> bool {
    let text = fs::read_to_string(file).expect("the file");
    (cfg!(not(feature = "otlp")) && text.contains("\notlp = "))
        || (cfg!(not(feature = "postgres")) && text.contains("\nurl = \"postgres:"))
}

/// I52: the files hold a password in every place that one can be in.
#[test]
fn no_secret_is_printed() {
    for file in files("bad").into_iter().chain(files("good")) {
        for arguments in [&["validate"][..], &["validate", "--json"], &["config", "show"]] {
            let Output { stdout, stderr, .. } = oncekey(&file, arguments);
            let printed = text(&stdout) + &text(&stderr);
            assert!(!printed.contains("hunter2"), "{} {arguments:?}", file.display());
        }
    }
}

#[test]
fn problems_are_there_for_programs_too() {
    let Output { status, stdout, .. } =
        oncekey(&folder("bad/unknown-field.toml"), &["validate", "--json"]);
    assert_eq!(status.code(), Some(3));
    let said: serde_json::Value = serde_json::from_slice(&stdout).expect("JSON");
    assert_eq!(said["valid"], false);
    let problem = &said["problems"][0];
    assert_eq!((&problem["line"], &problem["column"]), (&8.into(), &1.into()));
    assert_eq!(problem["code"], "unknown-field");
    assert_eq!(problem["docs"], "docs/reference/config.md#route-mode");
}

#[test]
fn warnings_end_the_program_only_if_it_is_strict() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.toml");
    let text =
        "version = 1\n[server]\nupstream = ':3000'\n[[route]]\nmatch = '/x'\nmode = 'optional'\n";
    fs::write(&file, text).expect("written");
    let Output { status, stderr, .. } = oncekey(&file, &["validate"]);
    assert_eq!(status.code(), Some(0));
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert!(said.contains("warning[scope-guessed]"), "{said}");
    assert!(said.contains("cookies and X-Api-Key do not count"), "{said}");
    assert_eq!(oncekey(&file, &["validate", "--strict"]).status.code(), Some(6));
    let missing = folder.path().join("no.toml");
    let Output { status, stderr, .. } = oncekey(&missing, &["validate"]);
    assert_eq!(status.code(), Some(3));
    assert!(String::from_utf8_lossy(&stderr).contains("there is no file no.toml"));
}

/// A file that is called valid must not be refused by the next start.
#[test]
fn what_run_would_refuse_is_not_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.toml");
    secret(&folder.path().join("token"), "short");
    secret(&folder.path().join("keys"), "no keys");
    let mut wrong = vec![
        ("[admin]\ntoken_file = 'token'\n", "the admin token has 5 characters"),
        ("[store]\nencrypt_with_files = ['keys']\n", "holds no keys"),
    ];
    if cfg!(not(feature = "otlp")) {
        wrong.push(("[telemetry]\notlp = 'http://127.0.0.1:4318'\n", "--features otlp"));
    }
    if cfg!(not(feature = "redis")) {
        let said = "-p oncekey-gateway --features redis";
        wrong.push(("[store]\nurl = 'redis://127.0.0.1'\n", said));
    }
    if cfg!(feature = "postgres") {
        wrong.push(("[store]\nurl = 'postgres://app@db/app?sslmode=banana'\n", "sslmode"));
    }
    for (more, said) in wrong {
        let text = format!("version = 1\n[server]\nupstream = ':3000'\n{more}");
        fs::write(&file, text).expect("written");
        let Output { status, stderr, .. } = oncekey(&file, &["validate"]);
        let printed = String::from_utf8(stderr).expect("UTF-8");
        assert_eq!(status.code(), Some(3), "{more}: {printed}");
        assert!(printed.starts_with("error[unusable]: "), "{printed}");
        assert!(printed.contains("┌─ a.toml:"), "{printed}");
        assert!(printed.contains(said), "{printed}");
        let ran = oncekey(&file, &["run"]);
        assert!(!ran.status.success(), "{more}");
        assert!(text_of(&ran).contains(said), "{more}: {}", text_of(&ran));
    }
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes what only its owner may read.
fn secret(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
    }
}

#[test]
fn a_file_without_routes_protects_nothing_and_is_warned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.toml");
    fs::write(&file, "version = 1\n[server]\nupstream = ':3000'\n").expect("written");
    assert_eq!(oncekey(&file, &["validate"]).status.code(), Some(0));
    let strict = oncekey(&file, &["validate", "--strict"]);
    assert_eq!(strict.status.code(), Some(6));
    assert!(text_of(&strict).contains("nothing is protected"), "{}", text_of(&strict));
}

/// The file is in the working folder, and so is what it includes.
#[test]
fn a_file_includes_others_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("oncekey.toml");
    let text = "version = 1\ninclude = ['r*.toml']\n[server]\nupstream = ':3000'\n";
    fs::write(&file, text).expect("written");
    fs::write(folder.path().join("r1.toml"), "[[route]]\nmatch = '/a'\n").expect("written");
    let Output { status, stdout, stderr } = oncekey(&file, &["validate"]);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert!(String::from_utf8_lossy(&stdout).contains("1 route"));
}

#[cfg(unix)]
#[test]
fn a_secret_that_everybody_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("a folder");
    let (file, token) = (folder.path().join("a.toml"), folder.path().join("token"));
    let text = "version = 1\n[server]\nupstream = ':3000'\n[admin]\ntoken_file = 'token'\n";
    fs::write(&file, text).expect("written");
    fs::write(&token, "0123456789abcdef").expect("written");
    let with = |mode| {
        fs::set_permissions(&token, fs::Permissions::from_mode(mode)).expect("permissions");
        oncekey(&file, &["validate"])
    };
    assert!(with(0o600).status.success());
    let Output { status, stderr, .. } = with(0o644);
    assert_eq!(status.code(), Some(3));
    let said = String::from_utf8(stderr).expect("UTF-8");
    assert!(said.contains("everybody on this machine can read token"), "{said}");
    assert!(said.contains("run: chmod o= token"), "{said}");
}

#[test]
fn show_prints_what_holds_and_where_it_comes_from() {
    for name in ["routes", "presets", "references"] {
        let file = folder("good").join(format!("{name}.toml"));
        let Output { status, stdout, .. } = oncekey(&file, &["config", "show"]);
        assert!(status.success());
        compare(&text(&stdout), &folder("show").join(format!("{name}.txt")));
        let Output { stdout, .. } = oncekey(&file, &["config", "show", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&stdout).expect("JSON");
        assert_eq!(shown["settings"]["server.host"]["origin"], "default");
    }
}

#[test]
fn explain_says_which_route_wins_and_why() {
    let file = folder("good/routes.toml");
    let mut printed = String::new();
    for request in [
        "POST /v1/charges",
        "POST /v1/charges/9/capture",
        "PATCH /v1/charges",
        "POST /v1//charges",
        "PUT /v1/charges?x=1",
    ] {
        let Output { status, stdout, .. } = oncekey(&file, &["config", "explain", request]);
        assert!(status.success(), "{request}");
        // The settings of a route are printed alike every time, and shown above.
        let said = text(&stdout);
        printed += said.split("\n\n").next().unwrap_or_default().trim_end();
        printed += "\n\n";
    }
    compare(&printed, &folder("show/explain.txt"));
    for wrong in ["/v1/charges", "POST", "POST v1", "post /x"] {
        assert_eq!(
            oncekey(&file, &["config", "explain", wrong]).status.code(),
            Some(64),
            "{wrong}"
        );
    }
    let Output { stdout, .. } =
        oncekey(&file, &["config", "explain", "POST /v1/charges", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&stdout).expect("JSON");
    assert_eq!(said["route"]["name"], "create-charge");
    assert_eq!(said["settings"]["ttl"]["value"], "7d");
}

/// Whoever copies a configuration from the documentation has one that works.
#[test]
fn every_configuration_of_the_documentation_is_right() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut seen = 0;
    for page in ["reference/config.md", "how-to/configure-the-gateway.md"] {
        let page = fs::read_to_string(docs.join(page)).expect("the page");
        for block in page.split("```toml\n").skip(1) {
            let block = block.split("```").next().expect("its end");
            if !block.starts_with("version = 1") {
                continue;
            }
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("oncekey.toml");
            fs::write(&file, format!("# env: PGPASSWORD=x\n{block}")).expect("written");
            let Output { status, stderr, .. } = oncekey(&file, &["validate"]);
            assert!(status.success(), "{block}\n{}", text(&stderr));
            seen += 1;
        }
    }
    assert_eq!(seen, 6);
}
