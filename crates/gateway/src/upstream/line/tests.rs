//! Answers on a connection: wherever they are cut, whenever they come, and what becomes of the
//! connection.

use std::task::Waker;

use http::Method;

use super::super::head::MAX_HEAD;
use super::super::script::{Does, Piece, Pieces, Script};
use super::*;

type TestLine = Line<Pieces>;

/// Longer than any test.
const PATIENCE: Duration = Duration::from_secs(600);

/// An answer as its reader has it: status, body, how many trailers.
type Whole = (u16, Vec<u8>, usize);

fn request(method: Method, list: &[Piece]) -> Box<Request<Pieces>> {
    let list = list.iter().cloned().collect();
    let mut request = Request::new(Pieces { list, length: None });
    *request.method_mut() = method;
    *request.uri_mut() = "/".parse().unwrap();
    Box::new(request)
}

/// Asks the future until it is ready, or nothing more can happen.
fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let mut cx = Context::from_waker(Waker::noop());
    (0..100).find_map(|_| match poll(&mut cx) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

/// The head of the answer to a request; nothing if it does not come.
fn ask(line: &mut TestLine, request: Box<Request<Pieces>>) -> Option<Result<Response<()>, Fault>> {
    let mut exchange = Box::pin(line.exchange(request, PATIENCE));
    now(|cx| exchange.as_mut().poll(cx))
}

/// The body of the answer and how many trailers it has; nothing if it does not end.
fn body(line: &mut TestLine) -> Option<Result<(Vec<u8>, usize), Fault>> {
    let (mut body, mut trailers) = (Vec::new(), 0);
    loop {
        match now(|cx| line.poll_frame(cx))? {
            None => return Some(Ok((body, trailers))),
            Some(Err(fault)) => return Some(Err(fault)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => body.extend_from_slice(&data),
                Err(frame) => trailers += frame.into_trailers().unwrap().len(),
            },
        }
    }
}

/// All of an answer, and the connection that it came over.
fn read(script: &Script, method: Method) -> (Result<Whole, Fault>, Box<TestLine>) {
    let mut line = TestLine::new(script.stream());
    let answered = ask(&mut line, request(method, &[])).expect("an upstream that ends says so");
    let whole = answered.and_then(|response| {
        let (body, trailers) = body(&mut line).expect("an upstream that ends says so")?;
        Ok((response.status().as_u16(), body, trailers))
    });
    (whole, line)
}

const CHUNKED: &str = "HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n";

/// Answers that end by themselves: what they are, and whether the connection is free afterwards.
fn answers() -> Vec<(&'static str, Method, Whole, bool)> {
    let whole = |status, body: &str, trailers| (status, body.as_bytes().to_vec(), trailers);
    let hello = whole(200, "hello", 0);
    vec![
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", Method::GET, hello.clone(), true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Method::GET, whole(200, "", 0), true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Method::HEAD, whole(200, "", 0), true),
        ("HTTP/1.1 204 None\r\n\r\n", Method::POST, whole(204, "", 0), true),
        ("HTTP/1.1 304 Same\r\ncontent-length: 5\r\n\r\n", Method::GET, whole(304, "", 0), true),
        (CHUNKED, Method::POST, whole(201, "hello world", 1), true),
        (
            "HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            Method::POST,
            hello.clone(),
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
            Method::GET,
            hello.clone(),
            false,
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", Method::GET, hello.clone(), false),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 99\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            Method::GET,
            hello,
            false,
        ),
    ]
}

#[tokio::test]
async fn an_answer_is_the_same_wherever_it_is_cut() {
    for (wire, method, expected, free) in answers() {
        for at in 0..=wire.len() {
            let pieces = [&wire[..at], &wire[at..]].map(|piece| Does::Says(piece.into()));
            let pieces = pieces
                .into_iter()
                .filter(|does| !matches!(does, Does::Says(bytes) if bytes.is_empty()));
            let (whole, line) = read(&Script::new(pieces), method.clone());
            assert_eq!(whole.unwrap(), expected, "{wire} at {at}");
            assert_eq!(line.is_free(), free, "{wire} at {at}");
        }
        let (whole, _) = read(&Script::saying(wire.as_bytes(), 1), method);
        assert_eq!(whole.unwrap(), expected, "{wire}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_fault_at_every_byte() {
    for (wire, method, ..) in answers() {
        for end in 0..wire.len() {
            for how in [Does::Ends, Does::Resets] {
                let script = Script::new(
                    (end > 0)
                        .then(|| Does::Says(wire[..end].into()))
                        .into_iter()
                        .chain([how.clone()]),
                );
                let (whole, line) = read(&script, method.clone());
                let fault = whole.err().unwrap_or_else(|| panic!("{wire} is whole at {end}"));
                assert!(matches!(fault, Fault::Ended | Fault::Io(_)), "{wire} at {end}: {fault}");
                assert!(!line.is_free(), "{wire} at {end}");
            }
        }
    }
}

#[tokio::test]
async fn an_answer_without_a_length_ends_with_the_connection() {
    let wire = "HTTP/1.1 200 OK\r\nx: y\r\n\r\nall there is";
    for size in 1..wire.len() {
        let (whole, line) = read(&Script::saying(wire.as_bytes(), size), Method::GET);
        assert_eq!(whole.unwrap(), (200, b"all there is".to_vec(), 0));
        assert!(!line.is_free());
    }
    let cut = [Does::Says(wire.into()), Does::Resets];
    assert!(matches!(read(&Script::new(cut), Method::GET).0, Err(Fault::Io(_))));
}

/// What stands behind an answer would be taken for the answer to the next request.
#[tokio::test]
async fn nothing_is_put_on_a_connection_that_says_more_than_its_answer() {
    for (wire, method, expected, _) in answers() {
        let more = format!("{wire}HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil");
        for size in [more.len(), wire.len()] {
            let pieces = more.as_bytes().chunks(size).map(|piece| Does::Says(piece.into()));
            let (whole, mut line) = read(&Script::new(pieces), method.clone());
            assert_eq!(whole.unwrap(), expected, "{wire}");
            assert!(!line.is_open(&mut Context::from_waker(Waker::noop())), "{wire}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_the_other_side_ended_is_not_open() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    let script = Script::new([Does::Says(answer.into())]);
    let (_, mut line) = read(&script, Method::GET);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(line.is_open(&mut cx));
    // And again: a second request finds it as the first one did.
    script.then([Does::Says(answer.into())]);
    let mut line = {
        assert_eq!(ask(&mut line, request(Method::GET, &[])).unwrap().unwrap().status(), 200);
        assert!(!line.is_open(&mut cx), "its answer was not read");
        body(&mut line).unwrap().unwrap();
        line
    };
    assert!(line.is_open(&mut cx));
    for end in [Does::Ends, Does::Resets] {
        let script = Script::new([Does::Says(answer.into())]);
        let (_, mut line) = read(&script, Method::GET);
        script.then([end]);
        assert!(!line.is_open(&mut cx));
    }
}

/// An upstream may refuse a body before it has read it.
#[tokio::test]
async fn an_answer_that_comes_before_the_request_has_ended_is_an_answer() {
    let refusal = "HTTP/1.1 413 Large\r\ncontent-length: 2\r\n\r\nno";
    let large = Piece::Data(vec![b'x'; 100_000]);
    for (list, takes) in [
        (vec![Piece::Data(b"hel".to_vec()), Piece::Never], usize::MAX),
        (vec![large.clone(), Piece::Later, large.clone()], 50_000),
        (vec![large.clone(), Piece::Later, large, Piece::Never], 150_000),
    ] {
        let script =
            Script::new([Does::Waits(30), Does::Says(refusal.into()), Does::Ends]).takes(takes);
        let mut line = TestLine::new(script.stream());
        let response = ask(&mut line, request(Method::POST, &list)).unwrap().unwrap();
        assert_eq!(response.status(), 413, "{takes}");
        assert_eq!(body(&mut line).unwrap().unwrap().0, b"no");
        assert!(!line.is_free(), "half a request is on it");
    }
}

/// An upstream that reads and answers at the same time gets the rest of the request.
#[tokio::test]
async fn the_request_is_written_on_while_its_answer_is_read() {
    let script = Script::new([
        Does::Waits(40),
        Does::Says("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".into()),
    ]);
    let mut list = vec![Piece::Data(b"first".to_vec())];
    list.extend((0..10).map(|_| Piece::Later));
    list.push(Piece::Data(b"last".to_vec()));
    let mut line = TestLine::new(script.stream());
    assert_eq!(ask(&mut line, request(Method::POST, &list)).unwrap().unwrap().status(), 200);
    assert!(!script.got().ends_with("4\r\nlast\r\n0\r\n\r\n"));
    script.then([Does::Waits(71), Does::Says("5\r\nhello\r\n0\r\n\r\n".into())]);
    assert_eq!(body(&mut line).unwrap().unwrap().0, b"hello");
    assert!(script.got().ends_with("4\r\nlast\r\n0\r\n\r\n"), "{}", script.got());
    assert!(line.is_free());
}

#[tokio::test]
async fn a_request_of_which_nothing_could_be_written_was_never_sent() {
    // Not even if there is something that looks like an answer.
    let answer = Does::Says("HTTP/1.1 408 Late\r\ncontent-length: 0\r\n\r\n".into());
    let script = Script::new([answer, Does::Ends]).takes(0);
    let mut line = TestLine::new(script.stream());
    let fault = ask(&mut line, request(Method::POST, &[])).unwrap().unwrap_err();
    assert!(matches!(fault, Fault::Io(_)), "{fault}");
    assert_eq!((line.written(), line.is_free()), (0, false));
}

/// TLS writes several times in one call, and says only that the last of them failed.
#[tokio::test]
async fn a_write_over_tls_that_failed_may_have_sent_something() {
    let script = Script::new([]).takes(10).over_tls();
    let mut line = TestLine::new(script.stream());
    script.then([Does::Resets]);
    let fault = ask(&mut line, request(Method::POST, &[])).unwrap().unwrap_err();
    assert!(matches!(fault, Fault::Io(_)), "{fault}");
    assert!(line.written() > 0, "{} bytes have left", script.got().len());
}

/// A server that does not read the body of a GET takes it for the next request, and its answer for
/// the answer to somebody else's.
#[tokio::test]
async fn nobody_is_put_behind_a_body_where_none_belongs() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    let hidden = [Piece::Data(b"GET /evil HTTP/1.1\r\nhost: a\r\n\r\n".to_vec())];
    for (method, list, free) in [
        (Method::GET, &hidden[..], false),
        (Method::DELETE, &hidden, false),
        (Method::OPTIONS, &hidden, false),
        (Method::POST, &hidden, true),
        (Method::GET, &[], true),
        (Method::DELETE, &[], true),
    ] {
        let mut line = TestLine::new(Script::new([Does::Says(answer.into())]).stream());
        assert_eq!(ask(&mut line, request(method.clone(), list)).unwrap().unwrap().status(), 200);
        assert_eq!(body(&mut line).unwrap().unwrap().0, b"hello");
        assert_eq!(line.is_free(), free, "{method}");
    }
}

/// Whoever says something all the time never lets the alarm have its turn.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_only_says_go_on_is_late_too() {
    let mut line = TestLine::new(Script::new([]).stream());
    let second = Duration::from_secs(1);
    let mut exchange = Box::pin(line.exchange(request(Method::GET, &[]), second));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(exchange.as_mut().poll(&mut cx).is_pending());
    tokio::time::advance(2 * second).await;
    // Everything that a task may do in one turn is used up by what it reads.
    while tokio::task::coop::has_budget_remaining() {
        tokio::task::consume_budget().await;
    }
    assert!(matches!(exchange.as_mut().poll(&mut cx), Poll::Ready(Err(Fault::Late))));
}

#[tokio::test]
async fn a_body_that_breaks_off_ends_the_exchange() {
    for (list, written) in [
        (vec![Piece::Broken], false),
        (vec![Piece::Data(vec![b'x'; 9]), Piece::Later, Piece::Broken], true),
    ] {
        let script = Script::new([]);
        let mut line = TestLine::new(script.stream());
        let fault = ask(&mut line, request(Method::POST, &list)).unwrap().unwrap_err();
        assert!(fault.is_of_client(), "{fault}");
        assert_eq!((line.written() > 0, line.is_free()), (written, false));
    }
}

#[tokio::test]
async fn a_connection_whose_request_was_dropped_is_never_free_again() {
    for does in [vec![], vec![Does::Says("HTTP/1.1 200 OK\r\n".into())]] {
        let mut line = TestLine::new(Script::new(does).stream());
        assert!(line.is_free());
        assert!(ask(&mut line, request(Method::GET, &[])).is_none());
        assert!(!line.is_free());
    }
}

#[tokio::test]
async fn a_head_may_be_large_but_not_endless() {
    let most = usize::try_from(MAX_HEAD).unwrap();
    for (length, ok) in [(most - 100, true), (most + 1, false), (10 * most, false)] {
        let wire =
            format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "y".repeat(length));
        for size in [1_000, wire.len()] {
            match read(&Script::saying(wire.as_bytes(), size), Method::GET).0 {
                Ok(_) => assert!(ok, "{length}"),
                Err(fault) => {
                    assert!(!ok && matches!(fault, Fault::HeadTooLarge), "{length}: {fault}")
                }
            }
        }
    }
}

#[tokio::test]
async fn a_large_body_is_whole_and_little_memory_stays_with_the_connection() {
    let text: Vec<u8> = (0..=250).cycle().take(1_000_000).collect();
    let mut sized = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n".to_vec();
    sized.extend_from_slice(&text);
    let mut chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in text.chunks(70_000) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    for wire in [sized, chunked] {
        for size in [wire.len(), 10_000, 1_447] {
            let (whole, mut line) = read(&Script::saying(&wire, size), Method::GET);
            assert_eq!(whole.unwrap().1, text, "{size}");
            line.rest();
            assert_eq!(line.inbox.held().capacity(), 0);
        }
    }
}

/// A piece of a body keeps no large buffer alive.
#[tokio::test]
async fn what_is_handed_on_keeps_at_most_twice_its_size() {
    let mut line = TestLine::new(Script::new([]).stream());
    let held = line.inbox.held();
    held.reserve(64 * 1024);
    held.extend_from_slice(b"hello");
    let taken = line.inbox.take(5);
    assert_eq!(&taken[..], b"hello");
    assert_eq!(taken.try_into_mut().unwrap().capacity(), 5);
}

#[tokio::test]
async fn a_connection_that_was_switched_is_handed_out_with_what_came_behind() {
    let wire = "HTTP/1.1 101 Switch\r\nupgrade: x\r\n\r\nfirst";
    let mut line = TestLine::new(Script::new([Does::Says(wire.into())]).stream());
    let response = ask(&mut line, request(Method::GET, &[])).unwrap().unwrap();
    assert_eq!(response.status(), 101);
    assert!(line.is_ended() && !line.is_free());
    assert_eq!(&line.switched().unwrap().1[..], b"first");

    let mut line = TestLine::new(Script::new([Does::Waits(10), Does::Says(wire.into())]).stream());
    let early = ask(&mut line, request(Method::POST, &[Piece::Data(b"x".to_vec()), Piece::Never]));
    assert!(matches!(early, Some(Err(Fault::SwitchedEarly))));

    let (_, line) = read(&Script::saying(b"HTTP/1.1 204 None\r\n\r\n", 99), Method::GET);
    assert!(line.switched().is_none(), "only whoever says 101 has switched");
}

/// The alarm of a request is left to the next one, and each waits as long as it may.
#[tokio::test(start_paused = true)]
async fn a_late_answer_is_late_for_each_request_of_a_connection() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let script = Script::new([]);
    let mut line = TestLine::new(script.stream());
    let second = Duration::from_secs(1);
    for _ in 0..3 {
        // An answer that comes after the alarm was set: whoever writes it is asked twice.
        script.then([Does::Waits(script.got().len() + 1), Does::Says(answer.into())]);
        let answered = line.exchange(request(Method::GET, &[]), 10 * second).await;
        assert_eq!(answered.unwrap().status(), 200);
        assert!(line.is_free() && line.alarm.is_some());
        tokio::time::advance(7 * second).await;
    }
    for patience in [10 * second, 3 * second, 30 * second] {
        let began = Instant::now();
        let late = line.exchange(request(Method::GET, &[]), patience).await;
        assert!(matches!(late, Err(Fault::Late)));
        let took = began.elapsed();
        assert!(took >= patience && took < patience + second / 100, "{took:?}");
        assert!(!line.is_free());
    }
}
