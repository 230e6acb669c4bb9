//! Refused entries: which ports are affected, which are retried, which wait.

use std::io;

use lb_common::addr::{Ip, Port, Protocol};
use lb_common::service::Service;

use super::*;

/// Makes `SERVICES` with room for this number of entries.
#[derive(Debug)]
struct Small {
    capacity: usize,
    services: BTreeMap<Frontend, ServiceId>,
    sources: usize,
    /// Makes `SERVICES` without memory for entries.
    is_short: bool,
    is_broken: bool,
}

impl WriteTarget for Small {
    fn apply(&mut self, op: &Op) -> Result<(), maps::Error> {
        let full = || maps::Error::Batch {
            map: "SERVICES",
            source: io::Error::from_raw_os_error(libc::E2BIG),
        };
        match op {
            Op::PutService { frontend, service } => {
                if self.is_short || !self.has(frontend) && self.services.len() >= self.capacity {
                    return Err(full());
                }
                self.services.insert(*frontend, service.id);
            }
            Op::RemoveService { frontend } => drop(self.services.remove(frontend)),
            _ if self.is_broken => return Err(full()),
            Op::PutSource { .. } => self.sources += 1,
            Op::RemoveSource { .. } => self.sources -= 1,
            Op::PutSettings(_)
            | Op::PutBackend { .. }
            | Op::WriteLines { .. }
            | Op::ForgetClients { .. } => {}
        }
        Ok(())
    }

    fn has(&self, frontend: &Frontend) -> bool {
        self.services.contains_key(frontend)
    }
}

fn frontend(number: u8) -> Frontend {
    Frontend::new(Ip::v4([10, 96, 0, number]), Port::new(80), Protocol::TCP)
}

fn put(number: u8) -> Op {
    let service = Service { id: u32::from(number), ..Service::default() };
    Op::PutService { frontend: frontend(number), service }
}

fn writer(capacity: usize) -> Writer<Small> {
    let services = BTreeMap::new();
    Writer::new(Small { capacity, services, sources: 0, is_short: false, is_broken: false })
}

#[test]
fn an_entry_that_is_refused_costs_only_its_own_service() {
    let (mut writer, numbers) = (writer(2), Numbers::default());
    writer.write(vec![put(1), put(2), put(3), put(2)], &numbers);
    assert!(writer.is_done(), "no operation waits for it");
    assert_eq!(writer.unwritten().into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [3]);
    assert!(!writer.retry(&numbers), "still no room");
    writer.write(vec![Op::RemoveService { frontend: frontend(1) }], &numbers);
    assert!(writer.retry(&numbers));
    assert!(!writer.take_replaced(), "packets had no entry before");
    assert_eq!(writer.maps.services.values().copied().collect::<Vec<_>>(), [2, 3]);
    assert_eq!(writer.unwritten().len(), 0);
}

fn source(number: u8) -> Op {
    Op::PutSource { bits: 32, source: Source::new(number.into(), Ip::v4([10, 0, 0, number])) }
}

#[test]
fn refusal_of_one_map_does_not_block_the_others() {
    let (mut writer, numbers) = (writer(1), Numbers::default());
    writer.write(vec![put(1)], &numbers);
    writer.maps.is_broken = true;
    writer.write(vec![put(2), source(3)], &numbers);
    assert_eq!(writer.unwritten().len(), 2);
    writer.maps.is_broken = false;
    assert!(writer.retry(&numbers), "the other map has room");
    assert_eq!(writer.unwritten().into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [2]);
}

#[test]
fn served_entry_stays_until_its_replacement_is_written() {
    let (mut writer, numbers) = (writer(2), Numbers::default());
    writer.write(vec![source(1), put(1)], &numbers);
    writer.maps.is_short = true;
    let new =
        Op::PutService { frontend: frontend(1), service: Service { id: 7, ..Service::default() } };
    let Op::PutSource { bits, source } = source(1) else { panic!("a source") };
    writer.write(vec![new, Op::RemoveSource { bits, source }], &numbers);
    assert_eq!(writer.maps.services[&frontend(1)], 1, "as it was");
    assert!(writer.maps.sources == 1, "the served entry still needs it");
    assert!(
        writer.is_done() && !writer.is_up_to_date(),
        "no operation waits, and nothing is reused"
    );
    assert_eq!(writer.unwritten().into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [7]);
    writer.write(vec![put(2)], &numbers);
    writer.maps.is_short = false;
    assert!(writer.retry(&numbers));
    assert_eq!(writer.maps.services.values().copied().collect::<Vec<_>>(), [7, 2]);
    assert_eq!([writer.take_replaced(), writer.take_replaced()], [true, false]);
    assert!(writer.is_up_to_date() && writer.maps.sources == 0 && writer.unwritten().is_empty());
}

#[test]
fn newer_write_of_a_refused_entry_replaces_the_served_one() {
    let (mut writer, numbers) = (writer(1), Numbers::default());
    writer.write(vec![put(1)], &numbers);
    writer.maps.is_short = true;
    let with = |id| {
        let service = Service { id, ..Service::default() };
        Op::PutService { frontend: frontend(1), service }
    };
    writer.write(vec![with(7)], &numbers);
    assert!(!writer.take_replaced());
    writer.maps.is_short = false;
    writer.write(vec![with(7)], &numbers);
    assert!(writer.take_replaced());
}

#[test]
fn refused_new_entry_does_not_block_reuse() {
    let (mut writer, numbers) = (writer(0), Numbers::default());
    writer.write(vec![put(1)], &numbers);
    assert!(writer.is_up_to_date() && writer.unwritten().len() == 1);
}

#[test]
fn log_names_an_entry_as_lists_do() {
    let of = |op: &Op| MapEntry::of(op).map(|entry| entry.to_string());
    assert_eq!(of(&put(1)).as_deref(), Some("10.96.0.1:80/TCP"));
    let source = Source::new(7, Ip::v4([10, 0, 0, 0]));
    let words = of(&Op::PutSource { bits: 32 + 96 + 8, source });
    assert_eq!(words.as_deref(), Some("source range 10.0.0.0/8 of service #7"));
}

#[test]
fn every_refused_entry_is_retried_in_turn() {
    let (mut writer, numbers) = (writer(0), Numbers::default());
    let number = |number: u16| {
        let [high, low] = number.to_be_bytes();
        Frontend::new(Ip::v4([10, 96, high, low]), Port::new(80), Protocol::TCP)
    };
    let service = Service::default();
    let put = |at| Op::PutService { frontend: number(at), service };
    let many = 2 * TURN as u16 + 7;
    writer.write((0..many).map(put).collect(), &numbers);
    let mut tried = std::collections::BTreeSet::new();
    for _ in 0..3 {
        assert!(!writer.retry(&numbers));
    }
    for _ in 0..3 {
        let turn = writer.turn();
        assert!(turn.len() == TURN, "{}", turn.len());
        tried.extend(turn);
    }
    assert_eq!(tried.len(), usize::from(many));
}

#[test]
fn removed_entry_is_not_retried() {
    let (mut writer, numbers) = (writer(1), Numbers::default());
    writer.write(vec![put(1), put(2)], &numbers);
    writer.write(vec![Op::RemoveService { frontend: frontend(2) }], &numbers);
    writer.write(vec![Op::RemoveService { frontend: frontend(1) }], &numbers);
    assert!(!writer.retry(&numbers));
    assert!(writer.maps.services.is_empty());
}

#[test]
fn refused_settings_block_all_later_entries() {
    let (mut writer, numbers) = (writer(1), Numbers::default());
    writer.maps.is_broken = true;
    writer.write(vec![Op::PutSettings(Box::default()), put(1)], &numbers);
    assert!(!writer.is_done() && writer.maps.services.is_empty());
    assert!(writer.failing_since().is_some());
    writer.maps.is_broken = false;
    writer.retry(&numbers);
    assert!(writer.is_done() && writer.maps.services.len() == 1);
    assert!(writer.failing_since().is_none());
}
