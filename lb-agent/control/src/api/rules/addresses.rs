//! `IPAddress` objects: one for each booked cluster address.

use serde_json::{Value, json};

use crate::api::metadata::uid;
use crate::schema;
use crate::service::{Booking, Decision, Service};
use crate::store::{Key, Transaction};

/// Writes and deletes `IPAddress` objects after a decision about a Service.
pub(crate) fn keep(transaction: &mut Transaction<'_>, decision: &Decision) {
    // Releases first, so that an address that is released and booked again by this change remains.
    for booking in &decision.releases {
        give_back(transaction, *booking);
    }
    for booking in &decision.books {
        let Booking::Address(address) = booking else { continue };
        let name = address.to_string();
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let service = &decision.service.metadata;
        let object = json!({
            "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
            "metadata": {
                "name": name, "uid": uid(), "creationTimestamp": schema::now(),
                "labels": {
                    "ipaddress.kubernetes.io/ip-family": family,
                    "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
                },
            },
            "spec": {"parentRef": {
                "resource": "services", "namespace": service.namespace, "name": service.name,
            }},
        });
        drop(transaction.put(Key::new("ipaddresses", "", &name), object));
    }
}

fn give_back(transaction: &mut Transaction<'_>, booking: Booking) {
    if let Booking::Address(address) = booking {
        drop(transaction.delete(&Key::new("ipaddresses", "", &address.to_string())));
    }
}

/// Releases all bookings of a Service and deletes its `IPAddress` objects.
pub(crate) fn release(transaction: &mut Transaction<'_>, service: &Value) {
    let Ok(service) = serde_json::from_value::<Service>(service.clone()) else { return };
    for booking in crate::service::bookings(&service) {
        transaction.release(booking);
        give_back(transaction, booking);
    }
}
