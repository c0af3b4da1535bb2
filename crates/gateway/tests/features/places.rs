use std::io::Read as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use crate::rig::{Rig, exchange, run};

const ROUTE: &str = "[[route]]\nmatch = 'POST /pay'\nmode = 'required'\nscope = ['shared']\n";

#[test]
fn clients_may_come_over_a_socket_of_this_machine() {
    let rig = Rig::with(|folder| {
        let path = folder.join("oncekey.sock");
        // What a process leaves behind that was killed.
        drop(UnixListener::bind(&path).expect("a socket"));
        format!("listen = 'unix:{}'\n{ROUTE}", path.display())
    });
    let send = || {
        let stream = UnixStream::connect(rig.file("oncekey.sock")).expect("the gateway");
        exchange(stream, "POST /pay", &["Idempotency-Key: 8e03978e-40d5-43e8"], "1")
    };
    assert_eq!(send().status(), 200);
    assert_eq!(send().header("idempotent-replayed"), Some("true"));
    assert_eq!(rig.listen, format!("unix:{}", rig.file("oncekey.sock").display()));
}

#[test]
fn a_file_that_is_no_socket_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("precious");
    std::fs::write(&path, "data").expect("a file");
    let text = format!(
        "version = 1\nstore.url = 'memory:'\n\
         [server]\nlisten = 'unix:{}'\nupstream = ':1'\n",
        path.display()
    );
    let file = folder.path().join("oncekey.toml");
    std::fs::write(&file, text).expect("the file");
    let mut program = run(&file);
    let mut said = String::new();
    program.stderr.take().expect("stderr").read_to_string(&mut said).expect("UTF-8");
    assert!(!program.wait().expect("an end").success());
    assert!(said.contains("cannot listen on unix:"), "{said}");
    assert_eq!(std::fs::read_to_string(path).expect("still there"), "data");
}

#[test]
fn changes_are_audited_in_a_file_and_the_instance_has_its_name() {
    let rig =
        Rig::new(&format!("instance = 'north-1'\n[admin]\naudit_file = 'audit.jsonl'\n{ROUTE}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let reload = command.args(["reload", "--admin", &format!("http://{}", rig.admin)]);
    let output = reload.output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let audit = std::fs::read_to_string(rig.file("audit.jsonl")).expect("the audit");
    assert!(audit.contains("reload"), "{audit}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let status = command.args(["status", "--json", "--admin", &format!("http://{}", rig.admin)]);
    let output = status.output().expect("the program runs");
    assert!(String::from_utf8_lossy(&output.stdout).contains("north-1"), "{output:?}");
}
