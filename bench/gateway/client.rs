//! A client for what wrk is not made for: the first request, the thousand keys, a count.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use oncekey_bench::Result;

/// A connection that is kept.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    port: u16,
}

/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(30);
const BODY: &str = r#"{"amount":1000,"currency":"EUR","customer":"cus_8fj2","note":"order 1042"}"#;

impl Client {
    pub(crate) fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, port })
    }

    /// The body of what is found there.
    pub(crate) fn get(&mut self, path: &str) -> Result<String> {
        let port = self.port;
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"))
    }

    /// Pays with this key or without one, as the script of wrk does.
    pub(crate) fn pay(&mut self, key: Option<&str>) -> Result<String> {
        let (port, length) = (self.port, BODY.len());
        let key = key.map_or_else(String::new, |key| format!("Idempotency-Key: {key}\r\n"));
        self.ask(&format!(
            "POST /v1/charges HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\
             Content-Type: application/json\r\nAuthorization: Bearer bench\r\n\
             {key}Content-Length: {length}\r\n\r\n{BODY}"
        ))
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        self.stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut some = [0; 4_096];
        loop {
            let read = self.stream.read(&mut some)?;
            if read == 0 {
                return Err("a server closed its connection".into());
            }
            answer.extend_from_slice(&some[..read]);
            if let Some(body) = whole(&answer)? {
                return Ok(body);
            }
        }
    }
}

/// The body, if all of it is there.
fn whole(answer: &[u8]) -> Result<Option<String>> {
    let text = std::str::from_utf8(answer)?;
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Ok(None) };
    if !head.starts_with("HTTP/1.1 200") {
        return Err(format!("a request failed: {text}").into());
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let length = length.ok_or("an answer without a length")??;
    Ok((body.len() >= length).then(|| body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_end_and_a_failure_is_one() {
        let head = b"HTTP/1.1 200 OK\r\nContent-length: 2\r\n\r\n";
        assert_eq!(whole(&head[..20]).unwrap(), None);
        assert_eq!(whole(head).unwrap(), None);
        assert_eq!(whole(&[head, &b"ok"[..]].concat()).unwrap().as_deref(), Some("ok"));
        assert!(whole(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
