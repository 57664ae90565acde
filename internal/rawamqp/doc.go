// Package rawamqp is as much of an AMQP 0-9-1 client as it takes to have a message in hand that the driver cannot read: the
// handshake, basic.get, ack, nack and a passive declare, on one channel, with the content of messages left as the bytes that it
// came as. The driver (amqp091-go v1.16) ends its connection at such a message before anybody can say what it was, or settle
// it; and whoever would take it off with an automatic ack has to hope that it is still the one at the head.
//
// Whether a message can be read is for the driver to say: Judge hands it the very frames, in memory.
package rawamqp
