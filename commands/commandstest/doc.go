// Package commandstest reads decisions as sentences:
//
//	customer := commandstest.For[domain.Customer](t)
//	customer.Given(registered, due).When(commands.NewChargeBilling(ada, nov, usd49)).Then(asked)
//	customer.Given(registered, due, paid).When(commands.NewChargeBilling(ada, nov, usd49)).ThenNothing()
//	customer.Given().When(commands.NewChargeBilling(ada, nov, usd49)).ThenRefused(domain.ErrUnknownCustomer)
//
// Unasked, every When checks the laws of a decision:
//
//   - it is deterministic: decided twice, it gives equal answers;
//   - it is pure: the state is afterwards what it was before, deeply, and so is
//     the command, its key included;
//   - the state is a value: what two different continuations make of it, neither
//     sees of the other;
//   - the key has 1 to 255 characters, unless the command has none by design;
//   - within a test, no two commands of different names or streams share a key;
//   - a refusal is a [*domain.Error] with a code, and comes without events;
//   - every event is about the command's own stream.
//
// [Given.WhenBuilt] takes the constructor instead of the command and calls it
// twice, to see that it uses no clock and no chance.
package commandstest
