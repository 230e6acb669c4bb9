//! The rules for Services. The numbers in the names of tests only distinguish the rules.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::*;
use crate::field::{Cause, sentence};

mod allocation;
mod change;
mod creation;
mod refusals;

/// A cluster with two ranges that remembers its bookings.
pub(super) struct Cluster {
    pub(super) ranges: Ranges,
    pub(super) books: BTreeSet<Booking>,
}

impl Taken for BTreeSet<Booking> {
    fn has_address(&self, address: IpAddr) -> bool {
        self.contains(&Booking::Address(address))
    }

    fn has_port(&self, port: u16) -> bool {
        self.contains(&Booking::Port(port))
    }
}

impl Cluster {
    pub(super) fn new(nets: &[&str]) -> Self {
        let nets: Vec<_> = nets.iter().map(|it| it.parse().unwrap()).collect();
        let ranges = Ranges::new(&nets, PortRange::default()).unwrap();
        Self { ranges, books: BTreeSet::new() }
    }

    pub(super) fn dual() -> Self {
        Self::new(&["10.96.0.0/16", "fd00:10:96::/112"])
    }

    pub(super) fn single() -> Self {
        Self::new(&["10.96.0.0/16"])
    }

    pub(super) fn create(&mut self, spec: &Value) -> Result<Service, Refusal> {
        self.keep(create(named(spec), &self.ranges, &self.books, &mut |most| most / 2, false))
    }

    pub(super) fn dry(&self, spec: &Value) -> Result<Service, Refusal> {
        let made = create(named(spec), &self.ranges, &self.books, &mut |_| 0, true);
        made.map(|it| it.service)
    }

    pub(super) fn update(&mut self, old: &Service, spec: &Value) -> Result<Service, Refusal> {
        let mut new = named(spec);
        new.metadata = old.metadata.clone();
        let made = update(new, old, &self.ranges, &self.books, &mut |most| most / 2, false);
        self.keep(made)
    }

    fn keep(&mut self, decided: Result<Decision, Refusal>) -> Result<Service, Refusal> {
        let Decision { service, books, releases } = decided?;
        assert!(self.books.is_disjoint(&books), "nothing is given twice: {books:?}");
        assert!(releases.is_subset(&self.books), "what is released was booked: {releases:?}");
        self.books.extend(books);
        self.books.retain(|it| !releases.contains(it));
        Ok(service)
    }
}

/// Makes a Service `ns/x` with this spec.
pub(super) fn named(spec: &Value) -> Service {
    let object = json!({"metadata": {"name": "x", "namespace": "ns"}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

/// Returns the causes of a refusal.
pub(super) fn causes(refusal: Result<Service, Refusal>) -> Vec<Cause> {
    match refusal {
        Err(Refusal::Invalid(causes)) => causes,
        other => panic!("{other:?}"),
    }
}

/// Returns the causes of a refusal as one text.
pub(super) fn refusal(refused: Result<Service, Refusal>) -> String {
    sentence(&causes(refused))
}

pub(super) fn web() -> Value {
    json!({"selector": {"app": "web"}, "ports": [{"port": 80}]})
}

/// Makes the web Service with more fields.
pub(super) fn web_with(more: Value) -> Value {
    let mut spec = web();
    let (Value::Object(fields), Value::Object(more)) = (&mut spec, more) else { panic!("objects") };
    fields.extend(more);
    spec
}
