//! Messages of the kernel, and the connections that they report.

use lb_common::addr::Ip;

use super::*;

const CLIENT: (Ip, u16) = (Ip::v4([10, 1, 0, 5]), 40_000);
const CLUSTER: (Ip, u16) = (Ip::v4([10, 96, 0, 10]), 80);
const BACKEND: (Ip, u16) = (Ip::v4([10, 1, 0, 6]), 8080);

fn of([from, to]: [(Ip, u16); 2]) -> Vec<u8> {
    let end = |(ip, port)| Endpoint::new(ip, Port::new(port));
    written(Protocol::TCP, &Tuple::new(end(from), end(to)))
}

fn message(status: u32, state: u8) -> Vec<u8> {
    [
        nested(ORIGINAL, &[of([CLIENT, CLUSTER])]),
        nested(REPLY, &[of([BACKEND, CLIENT])]),
        number(STATUS, status),
        nested(PROTOCOL, &[nested(1, &[attribute(1, &[state])])]),
    ]
    .concat()
}

#[test]
fn connections_with_a_translated_destination_are_reported() {
    const ESTABLISHED: u8 = 3;
    let connection = |of: &[u8]| connection(Which::Translated, 2, of);
    let found = connection(&message(DESTINATION | 2, ESTABLISHED)).expect("a connection");
    assert_eq!(found.original.destination, CLUSTER.0);
    assert_eq!(found.reply.source_port.get(), BACKEND.1);
    assert_eq!(found.protocol, Protocol::TCP);
    assert_eq!(connection(&message(2, ESTABLISHED)), None, "translated nowhere");
    assert!(!found.is_over());
    let over = connection(&message(DESTINATION, OVER[0])).expect("a connection");
    assert!(over.is_over(), "both ends are done");
    assert_eq!(connection(&message(DESTINATION, ESTABLISHED)[..40]), None, "cut short");
}

#[test]
fn rest_of_the_life_of_an_entry_is_reported() {
    let left = |seconds: &[u8]| {
        let message = [message(2, 3), seconds.to_vec()].concat();
        let found = connection(Which::Kept, 2, &message).expect("a connection");
        found.ends_within(Duration::from_secs(5))
    };
    assert!(left(&number(TIMEOUT, 5)));
    assert!(!left(&number(TIMEOUT, 6)) && !left(&[]));
}

#[test]
fn connections_that_keep_their_destination_are_distinguished() {
    let kept = |status| connection(Which::Kept, 2, &message(status, 3));
    assert!(kept(2).is_some());
    assert_eq!(kept(DESTINATION), None);
}

#[test]
fn one_list_has_translated_connections_and_kept_ones() {
    let is_translated = |status, state| {
        let found = connection(Which::Either, 2, &message(status, state));
        found.map(|found| found.is_translated())
    };
    assert_eq!(is_translated(DESTINATION, OVER[0]), Some(true));
    assert_eq!(is_translated(2, 3), Some(false));
    assert_eq!(is_translated(2, OVER[0]), None);
}

#[test]
fn entry_is_named_by_the_tuple_of_the_kernel() {
    let original = nested(ORIGINAL, &[of([CLIENT, CLUSTER])]);
    assert_eq!(named(&message(2, 3)), original);
    let id = number(ID, 7);
    assert_eq!(named(&[message(2, 3), id.clone()].concat()), [original, id].concat());
    assert_eq!(named(&[]), [0; 0]);
}

#[test]
fn connections_that_are_over_are_reported_whether_they_were_translated_or_not() {
    let over = |status, state| connection(Which::Over, 2, &message(status, state));
    assert!(over(2, OVER[0]).is_some() && over(DESTINATION, OVER[1]).is_some());
    assert_eq!(over(2, 3), None);
}
