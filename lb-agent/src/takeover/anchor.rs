//! The anchor: keeps netfilter's translations going once kube-proxy's tables are deleted.
//!
//! The kernel translates packets of known connections as long as some nat chain exists and something in the namespace
//! uses conntrack. Deleting the last table of kube-proxy would end both, and with them every connection that kube-proxy
//! began.

use std::io;

use crate::netfilter::{
    CREATE, TABLES, attribute, body, change, dump, find, name, nested, number, text,
};

/// Name of the table, of family `inet`.
const TABLE: &str = "lb-agent";
const CHAIN: &str = "take-over";
/// `NFPROTO_INET`.
const INET: u8 = 1;
/// `NFT_MSG_NEWTABLE` and others of `enum nf_tables_msg_types`.
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
pub(super) const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
/// `NF_INET_POST_ROUTING`, and the priority of source NAT there.
const POSTROUTING: u32 = 4;
const SOURCE: u32 = 100;

/// Reports whether the anchor exists.
pub(super) fn is_there() -> io::Result<bool> {
    let mut found = false;
    dump(TABLES | GET_TABLE, INET, &[], |family, table| {
        found |= family == INET && find(table, 1).map(text) == Some(TABLE);
    })?;
    Ok(found)
}

/// Creates the anchor: a nat chain with a rule that uses conntrack and never matches. Returns whether it did not exist
/// before.
pub(super) fn put() -> io::Result<bool> {
    if is_there()? {
        return Ok(false);
    }
    let hook = nested(4, &[number(1, POSTROUTING), number(2, SOURCE)]);
    let chain = [name(1, TABLE), name(3, CHAIN), hook, name(7, "nat")].concat();
    let rule = [name(1, TABLE), name(2, CHAIN), nested(4, &never())].concat();
    // One transaction, so that no chain stays without its rule.
    change(&[
        (NEW_TABLE, CREATE, body(INET, &name(1, TABLE))),
        (NEW_CHAIN, CREATE, body(INET, &chain)),
        (NEW_RULE, CREATE, body(INET, &rule)),
    ])?;
    Ok(true)
}

/// Removes the anchor. Returns whether it existed.
pub fn remove() -> io::Result<bool> {
    if !is_there()? {
        return Ok(false);
    }
    change(&[(DELETE_TABLE, 0, body(INET, &name(1, TABLE)))])?;
    Ok(true)
}

/// The expression `ct status 0xffffffff`, which matches no connection.
fn never() -> [Vec<u8>; 2] {
    const ELEMENT: u16 = 1;
    /// `NFT_CT_STATUS`, `NFT_REG_1`, `NFT_CMP_EQ`.
    const STATUS: u32 = 2;
    const REGISTER: u32 = 1;
    const EQUAL: u32 = 0;
    let expression = |kind, data: &[Vec<u8>]| nested(ELEMENT, &[name(1, kind), nested(2, data)]);
    let all_bits = nested(3, &[attribute(1, &[0xff; 4])]);
    [
        expression("ct", &[number(1, REGISTER), number(2, STATUS)]),
        expression("cmp", &[number(1, REGISTER), number(2, EQUAL), all_bits]),
    ]
}
