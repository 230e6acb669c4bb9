//! The syntax of names, labels and addresses: each rule returns the fault, or nothing.

mod ip;
mod names;

pub(crate) use ip::{
    canonical_warning, cidr, endpoint_address, family, legacy_ip, sloppy, successor,
};
pub(crate) use names::{
    Faults, annotations, dns_label, dns_subdomain, label_key, label_value, labels, port_name,
    port_number,
};
