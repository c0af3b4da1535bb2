//! A way to the server that loses answers, and holds questions up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use oncekey::core::Fence;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::dynamodb::endpoint;

/// A proxy on this machine.
pub(crate) struct Proxy {
    url: String,
    script: Script,
}

/// What happens to questions, and which of them are refused whenever they come.
#[derive(Clone, Default)]
struct Script {
    steps: Arc<Mutex<VecDeque<Step>>>,
    throttled: Arc<Mutex<Option<String>>>,
}

/// What happens to one question.
#[derive(Clone)]
pub(crate) enum Step {
    /// It is asked and answered.
    Pass,
    /// It is asked, and the answer is lost.
    LoseAnswer,
    /// It is never asked, and the connection breaks.
    LoseQuestion,
    /// It is never asked: this status and this error code are the answer.
    Refuse(u16, &'static str),
    /// It is held up: `arrived` says that it is there, `go_on` lets it pass.
    Hold { arrived: Arc<Semaphore>, go_on: Arc<Semaphore> },
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it has an address"));
        let (server, script) = (server(), Script::default());
        let told = script.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, server.clone(), told.clone()));
            }
        });
        Self { url, script }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What happens to the next questions; after that, all pass.
    pub(crate) fn then(&self, steps: impl IntoIterator<Item = Step>) {
        self.script.steps.lock().expect("nobody panics here").extend(steps);
    }

    /// From now on, every question with this fence in it is throttled.
    pub(crate) fn throttle(&self, fence: Fence) {
        *self.script.throttled.lock().expect("nobody panics here") = Some(fence.to_string());
    }

    /// How many steps are still to come.
    pub(crate) fn left(&self) -> usize {
        self.script.steps.lock().expect("nobody panics here").len()
    }
}

impl Script {
    fn next(&self, question: &[u8]) -> Step {
        let throttled = self.throttled.lock().expect("nobody panics here");
        if throttled.as_ref().is_some_and(|it| String::from_utf8_lossy(question).contains(it)) {
            return Step::Refuse(400, "ThrottlingException");
        }
        self.steps.lock().expect("nobody panics here").pop_front().unwrap_or(Step::Pass)
    }
}

async fn serve(mut client: TcpStream, server: String, script: Script) {
    while let Some(question) = message(&mut client).await {
        let step = script.next(&question);
        match &step {
            Step::LoseQuestion => return,
            Step::Hold { arrived, go_on } => {
                arrived.add_permits(1);
                go_on.acquire().await.expect("it is never closed").forget();
            }
            Step::Refuse(status, code) => {
                if client.write_all(refusal(*status, code).as_bytes()).await.is_err() {
                    return;
                }
                continue;
            }
            Step::Pass | Step::LoseAnswer => {}
        }
        let mut upstream = TcpStream::connect(&server).await.expect("the server");
        upstream.write_all(&question).await.expect("the server reads");
        let Some(answer) = message(&mut upstream).await else { return };
        if let Step::LoseAnswer = step {
            return;
        }
        if client.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// One message of HTTP/1.1 with a length, whole.
async fn message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(head) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().expect("a number"));
            if bytes.len() >= head + 4 + length {
                return Some(bytes);
            }
        }
        let mut buffer = [0; 65_536];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

/// As DynamoDB refuses. The message quotes what it was sent, as some do.
fn refusal(status: u16, code: &str) -> String {
    let body = format!(
        "{{\"__type\":\"com.amazonaws.dynamodb.v20120810#{code}\",\"message\":\"no key-1 here\"}}"
    );
    let length = body.len();
    format!(
        "HTTP/1.1 {status} No\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn server() -> String {
    endpoint().trim_start_matches("http://").trim_end_matches('/').to_owned()
}
