//! A frontend that the agent removes while the first packet of a flow is under way.

use crate::addr::Protocol;
use crate::fake::{Fake, at, world};
use crate::forward::{Scratch, begin, choose};
use crate::service::Frontend;

/// Otherwise the flow would count as one whose frontend was looked up after the removal, and continue for ever.
#[test]
fn flow_of_a_frontend_that_is_removed_meanwhile_looks_it_up_again() {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::LOCAL4, true)]);
    tables.cluster_ip(world::CLUSTER4, Protocol::UDP, service);
    tables.settings.services.frontends_epoch = 5;
    let mut scratch = Scratch::default();
    let asked = at(world::CLUSTER4);
    scratch.choice.frontend = Frontend::new(asked.ip, asked.port, Protocol::UDP);
    choose::locate(&tables, &tables.settings, &mut scratch.choice, true).expect("a service");
    tables.services.clear();
    tables.settings.services.frontends_epoch = 6;
    begin::prepare(&tables, &mut scratch).expect("entries");
    assert_eq!(scratch.pair.forward.frontends_epoch, 5);
}
