//! Another way to read requests: `httparse`, which the HTTP library uses, and the plainest code
//! around it. It shares nothing with the sieve.

/// A request that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Where it ends in all the bytes. Nothing if they end before it does.
    pub(super) end: Option<usize>,
    pub(super) body: Vec<u8>,
}

/// Reads requests until the bytes end.
pub(super) fn read(bytes: &[u8]) -> Vec<Message> {
    let (mut messages, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let message = read_one(bytes, at);
        let end = message.end;
        messages.push(message);
        let Some(end) = end else { break };
        at = end;
    }
    messages
}

fn read_one(bytes: &[u8], start: usize) -> Message {
    let mut headers = [httparse::EMPTY_HEADER; 256];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(&bytes[start..]) {
        Ok(httparse::Status::Complete(head)) => start + head,
        other => panic!("a head went on that is not one: {other:?}"),
    };
    let value = |name: &str| {
        let mut found =
            request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        let value = found.next().map(|field| str::from_utf8(field.value).expect("ASCII"));
        assert_eq!(found.count(), 0, "{name} went on twice");
        value
    };
    match (value("content-length"), value("transfer-encoding")) {
        (Some(_), Some(_)) => panic!("a length went on beside a coding"),
        (None, None) => Message { end: Some(head), body: Vec::new() },
        (Some(length), None) => sized(bytes, head, length.parse().expect("a number")),
        (None, Some(_)) => chunked(bytes, head),
    }
}

fn sized(bytes: &[u8], start: usize, length: usize) -> Message {
    match start.checked_add(length).filter(|end| *end <= bytes.len()) {
        Some(end) => Message { end: Some(end), body: bytes[start..end].to_vec() },
        None => Message { end: None, body: bytes[start..].to_vec() },
    }
}

fn chunked(bytes: &[u8], mut at: usize) -> Message {
    let mut body = Vec::new();
    loop {
        let (line, size) = match httparse::parse_chunk_size(&bytes[at..]) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Message { end: None, body },
            Err(error) => panic!("a chunk size went on that is not one: {error:?}"),
        };
        at += line;
        if size == 0 {
            break;
        }
        let data = sized(bytes, at, usize::try_from(size).expect("64 bits"));
        body.extend(data.body);
        let Some(end) = data.end else { return Message { end: None, body } };
        match &bytes[end..] {
            [] => return Message { end: None, body },
            [b'\r', b'\n', ..] => at = end + 2,
            _ => panic!("no CRLF behind a chunk"),
        }
    }
    let mut trailers = [httparse::EMPTY_HEADER; 256];
    match httparse::parse_headers(&bytes[at..], &mut trailers) {
        Ok(httparse::Status::Complete((length, _))) => Message { end: Some(at + length), body },
        Ok(httparse::Status::Partial) => {
            assert_eq!(at, bytes.len(), "half of the trailers went on");
            Message { end: None, body }
        }
        Err(error) => panic!("trailers went on that are none: {error:?}"),
    }
}
