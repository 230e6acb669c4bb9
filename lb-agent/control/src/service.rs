//! Decisions about Services: the object that is stored for a request, and the addresses and ports that it books.
//!
//! Nothing here reads a clock, a file or a socket: [`Taken`] shows which addresses and ports are in use, [`Dice`]
//! supplies random numbers.

mod allocate;
mod annotations;
mod decide;
mod defaults;
mod families;
mod keep;
mod model;
mod outcome;
mod ranges;
mod status;
mod validate;
mod warnings;

pub use decide::{create, update};
pub use model::{
    AffinityConfig, ClientIp, Ingress, LoadBalancer, Port, Service, Spec, Status, Target,
};
pub(crate) use outcome::bookings;
pub use outcome::{Booking, Decision, Refusal};
pub use ranges::{AddressRange, Dice, PortRange, RangeError, Ranges, Taken};
pub use status::update_status;
pub use warnings::warnings;

#[cfg(test)]
mod tests;
