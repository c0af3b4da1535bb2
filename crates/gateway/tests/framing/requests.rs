//! What clients send.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::common::gateway::{Gateway, Home};
use crate::common::stub::{Arrived, Reply, Stub};
use crate::common::within;
use crate::vectors::{Expected, Vector, all};

/// So many clients at once: enough to be fast, and less than any limit on open files.
const CLIENTS: usize = 200;

/// What became of a vector.
struct Fate {
    vector: Vector,
    answers: Vec<u8>,
}

/// I37, I38: nothing that is refused reaches the upstream as a request, and what is accepted arrives
/// as exactly these requests, however many others are on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_meets_its_fate_in_a_running_gateway() {
    let upstream = Stub::start(|_| Reply::ok("")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), "");
    let gateway = home.run();
    let before = gateway.memory("VmRSS");
    let fates = within("all vectors", send_all(&gateway)).await;
    let grown = gateway.memory("VmHWM").saturating_sub(before);
    // Ends what is still on its way, so that nothing arrives after we have looked.
    gateway.kill();
    let mut arrived: HashMap<Ipv4Addr, Vec<Arrived>> = HashMap::new();
    for request in upstream.whole() {
        assert!(!request.path().contains("smuggled"), "{request:?}");
        let sender = request.line("x-forwarded-for").parse().expect("the gateway says who it was");
        arrived.entry(sender).or_default().push(request);
    }
    let mut wrong: Vec<String> = upstream.faults();
    for (number, fate) in fates.iter().enumerate() {
        let seen = arrived.remove(&address(number)).unwrap_or_default();
        if let Err(why) = judge(fate, &seen) {
            wrong.push(format!("{}: {why}", fate.vector.name));
        }
    }
    assert!(fates.len() >= 500, "{} vectors", fates.len());
    assert!(arrived.is_empty(), "nobody sent these: {arrived:?}");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), fates.len(), wrong.join("\n"));
    // I43: two hundred connections with heads of up to 64 kilobytes each.
    assert!(grown < 120_000, "memory grew by {grown} kB");
}

/// The address of the client with this number, which no other has.
fn address(number: usize) -> Ipv4Addr {
    let [.., high, low] = u32::try_from(number).unwrap().to_be_bytes();
    Ipv4Addr::new(127, 77, high, low)
}

async fn send_all(gateway: &Gateway) -> Vec<Fate> {
    let places = Arc::new(Semaphore::new(CLIENTS));
    let mut clients = JoinSet::new();
    for (number, vector) in all().into_iter().enumerate() {
        let (places, to) = (Arc::clone(&places), gateway.address);
        clients.spawn(async move {
            let _place = places.acquire_owned().await;
            let answers = converse(address(number), to, vector.bytes.clone());
            let answers = within(&vector.name.clone(), answers).await;
            (number, Fate { vector, answers })
        });
    }
    let mut fates = clients.join_all().await;
    fates.sort_by_key(|(number, _)| *number);
    fates.into_iter().map(|(_, fate)| fate).collect()
}

/// Says everything, says that this was all, and listens until the gateway closes.
async fn converse(from: Ipv4Addr, to: SocketAddr, bytes: Vec<u8>) -> Vec<u8> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let (mut reader, mut writer) = socket.connect(to).await.unwrap().into_split();
    let writing = tokio::spawn(async move {
        // Whoever is refused may find that nobody listens any more.
        let _ = writer.write_all(&bytes).await;
        let _ = writer.shutdown().await;
        writer
    });
    let (mut answers, mut piece) = (Vec::new(), [0; 8_192]);
    while let Ok(count @ 1..) = reader.read(&mut piece).await {
        answers.extend_from_slice(&piece[..count]);
    }
    writing.abort();
    answers
}

fn judge(fate: &Fate, seen: &[Arrived]) -> Result<(), String> {
    let Fate { vector, answers } = fate;
    let bodies: Vec<&[u8]> = seen.iter().map(|request| &request.body[..]).collect();
    if vector.bytes.starts_with(b"PRI * HTTP/2.0") {
        // The sieve would refuse it; a gateway speaks HTTP/2, and begins with its settings.
        return same("kind of the first frame", &answers.get(3), &Some(&4));
    }
    let statuses = statuses(answers)?;
    let is_tunnel = vector.bytes.starts_with(b"CONNECT ");
    match &vector.expected {
        // The gateway is no way to somewhere else.
        Expected::Accepted { .. } | Expected::Held { .. } if is_tunnel => {
            same("requests", &bodies.iter().filter(|body| !body.is_empty()).count(), &0)?;
            same("first status", &statuses.first(), &Some(&405))
        }
        Expected::Accepted { bodies: expected } => {
            same("bodies", &bodies, &slices(expected))?;
            same("statuses", &statuses, &vec![200; expected.len()])
        }
        Expected::Held { bodies: expected } => {
            let count = expected.len().min(bodies.len());
            same("bodies", &bodies[..count], &slices(expected)[..])?;
            let behind = &seen[count..];
            // The upstream wants no other protocol, so what was held back is the next request.
            match behind.is_empty() || is_asked(vector) {
                true => Ok(()),
                false => Err(format!("this arrived too: {behind:?}")),
            }
        }
        Expected::Refused { bodies: expected, status, .. } => {
            same("bodies", &bodies, &slices(expected))?;
            same("answers", &statuses.len(), &(expected.len() + 1))?;
            same("last status", &statuses.last(), &Some(status))
        }
    }
}

/// Whether the vector asks for another protocol, and not to be the last one.
fn is_asked(vector: &Vector) -> bool {
    let text = vector.bytes.to_ascii_lowercase();
    crate::common::contains(&text, b"\nupgrade:") && !crate::common::contains(&text, b"close\r\n")
}

fn slices(bodies: &[Vec<u8>]) -> Vec<&[u8]> {
    bodies.iter().map(Vec::as_slice).collect()
}

fn same<T: PartialEq + std::fmt::Debug + ?Sized>(
    what: &str,
    seen: &T,
    expected: &T,
) -> Result<(), String> {
    let short = |value: &T| format!("{value:?}").chars().take(300).collect::<String>();
    match seen == expected {
        true => Ok(()),
        false => Err(format!("{what}: {} instead of {}", short(seen), short(expected))),
    }
}

/// The status of every answer. They all have a length.
fn statuses(answers: &[u8]) -> Result<Vec<u16>, String> {
    let (mut statuses, mut rest) = (Vec::new(), answers);
    while !rest.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        let Ok(httparse::Status::Complete(head)) = response.parse(rest) else {
            return Err(format!("no answer: {}", rest.escape_ascii()));
        };
        let length =
            response.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
        let length =
            length.map_or(0, |field| str::from_utf8(field.value).unwrap().parse().unwrap());
        let status = response.code.unwrap();
        if status != 100 {
            statuses.push(status);
        }
        rest = rest.get(head + length..).ok_or("an answer breaks off")?;
    }
    Ok(statuses)
}
